"""A model as a Hugging Face folder (best/, final/), written so that a crash never costs the one before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_model, save_model
from torch import nn
from transformers import PreTrainedModel

from isostep.durable import sync
from isostep.models.pretrained import quiet

WEIGHTS = "model.safetensors"

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def export(model: nn.Module, tokenizer: PreTrainedTokenizerBase, folder: Path, card: str) -> None:
    """Write config.json, model.safetensors, the tokenizer and `card` as README.md into `folder`, replacing it whole.

    Of a model that is none of transformers' there is no config.json, and model.safetensors is its state dict.

    The new folder is made hidden beside the old one and flushed to the disk; then the old is renamed aside, the new
    takes its place and the old is deleted. What a crash leaves of that is put right by `repair`, which each call
    starts with. For one process only, with the bare model (no DDP around it); raises OSError when the disk is full.
    """
    repair(folder)
    made, aside = _made(folder), _aside(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.mkdir()
        if isinstance(model, PreTrainedModel):
            with quiet():
                model.save_pretrained(made)
        else:
            save_model(model, str(made / WEIGHTS))
        # The last batch's truncation and padding would be written down as if they were the tokenizer's own.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.save_pretrained(made)
        (made / "README.md").write_text(card, encoding="utf-8")
        _flush(made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    if folder.exists():
        os.rename(folder, aside)
    os.rename(made, folder)
    sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def restore(model: nn.Module, folder: Path) -> None:
    """Put the exported weights back into a model of the same class and shape."""
    if isinstance(model, PreTrainedModel):
        with quiet():
            loaded = type(model).from_pretrained(folder, dtype=next(model.parameters()).dtype, use_safetensors=True,
                                                 local_files_only=True)  # fmt: skip
        model.load_state_dict(loaded.state_dict())
    else:
        load_model(model, str(folder / WEIGHTS))


def repair(folder: Path) -> None:
    """Finish what a crash interrupted: bring back a folder that was only moved aside, sweep anything half written."""
    made, aside = _made(folder), _aside(folder)
    if aside.exists() and not folder.exists():
        os.rename(aside, folder)
        sync(folder.parent)
    for left in (made, aside):
        if left.exists():
            shutil.rmtree(left)


def _made(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.new"


def _aside(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.old"


def _flush(folder: Path) -> None:
    """Everything below `folder` to the disk, the folders after what they hold."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(path, name))
        sync(Path(path))

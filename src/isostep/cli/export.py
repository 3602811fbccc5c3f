"""`isostep export`: a checkpoint of a run as a Hugging Face folder."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isostep.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import nn

    from isostep.config import Config
    from isostep.tasks import Task

HANDED_IN = "handed in"


def run(argv: Sequence[str]) -> int:
    """The command with its arguments (without its name); returns 0. Raises the errors of `export_checkpoint`."""
    arguments = _parser().parse_args(argv)
    out = Path(arguments.out)
    step = export_checkpoint(Path(arguments.run_dir), out, arguments.step, arguments.merge)
    print(f"the weights after step {step} written to {out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isostep export",
        description="Write a checkpoint as a Hugging Face folder: config, weights, tokenizer and model card.",
        epilog="Works while the run goes on and after it, however it ended.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="folder of the run, which holds config.yaml")
    parser.add_argument("out", metavar="OUT", help="folder to write; it must be new or empty")
    parser.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint of step N (default: the newest valid one)"
    )
    parser.add_argument("--merge", action="store_true", help="fold the trained adapter into its base")
    return parser


def export_checkpoint(
    run_dir: Path, out: Path, step: int | None = None, merge: bool = False, task: Task | None = None
) -> int:
    """Write the model of a checkpoint of the run into the folder `out`; returns the checkpoint's step.

    `task` is that which was handed to `fit`, where its head is of its own. Nothing in the run folder is touched.

    Raises ConfigError for a run, a step or a folder that can't be used, CheckpointError where what was asked for is
    damaged.
    """
    from isostep.checkpoint.card import model_card
    from isostep.checkpoint.export import export
    from isostep.cli.run_folder import read_config

    config = read_config(run_dir)
    if merge and config.lora is None:
        raise ConfigError(f"--merge: {run_dir} has trained no adapter (its lora is null): there is nothing to merge")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not empty; name a new folder")
    built, state = _restored(run_dir, config, step, task)
    step = int(state["train"]["step"])
    made_by = ["isostep", "train", "--config", str(run_dir / "config.yaml")]  # config.yaml is the whole configuration
    card = model_card(config, built.task, _results(run_dir, step), step, made_by)
    try:
        export(built.model, built.task.tokenizer, out, card)
    except OSError as error:
        raise ConfigError(f"{out} can't be written: {error.strerror or error}") from error
    return step


class Built(NamedTuple):
    """The model of a run, and the task that it answers."""

    model: nn.Module
    task: Task


def _restored(run_dir: Path, config: Config, step: int | None, task: Task | None) -> tuple[Built, dict[str, Any]]:
    """The model with a checkpoint's weights, and the checkpoint's state."""
    from isostep.checkpoint.contents import read_state, restore_model

    built: Built | None = None
    while True:
        folder = _checkpoint(run_dir, step)
        try:
            state = read_state(folder)
            built = built or _build(run_dir, config, state["facts"], task)
            _freeze_all_but_stored(folder, built.model)
            restore_model(folder, built.model)
            return built, state
        except CheckpointError:
            if step is not None or folder.is_dir():
                raise  # else it was deleted, as above


def _checkpoint(run_dir: Path, step: int | None) -> Path:
    """The folder of the checkpoint of `step`, verified, or the newest that verifies. The run folder stays as it is."""
    from isostep.checkpoint import store

    root = run_dir / "checkpoints"
    there = store.checkpoints(root)
    if not there:
        raise ConfigError(f"{run_dir} holds no checkpoint" + (" yet" if step is None else f", and so none of {step}"))
    if step is not None:
        if store.step_folder(root, step) not in there:
            steps = ", ".join(str(store.step_of(folder)) for folder in reversed(there))
            raise ConfigError(f"--step: {run_dir} has no checkpoint of step {step}; there are those of: {steps}")
        there = [store.step_folder(root, step)]
    for folder in there:
        try:
            store.verify(folder)
        except CheckpointError as error:
            if step is None and not folder.is_dir():
                return _checkpoint(run_dir, step)  # the run has gone on and has deleted it for a newer one
            if folder == there[-1]:
                raise
            print(f"{error}; the one before is used", file=sys.stderr)
        else:
            return folder
    raise AssertionError


def _build(run_dir: Path, config: Config, facts: dict[str, Any], task: Task | None) -> Built:
    """The model as training built it, its weights those of best/ or final/ where there is one, else the base's."""
    from isostep.cli.run_folder import exported, task_of
    from isostep.data.labels import Labels
    from isostep.data.token_cache import cache_root
    from isostep.models.load import load_model
    from isostep.models.pretrained import is_tiny
    from isostep.models.tokenizer import load_tokenizer, max_positions, resolve_max_length
    from isostep.tasks import make_task

    if facts.get("model") == HANDED_IN:
        raise ConfigError(
            f"{run_dir}: the model of this run was handed in from Python, and only that program can build it; "
            "model.safetensors of a checkpoint, of best/ and of final/ is its state dict"
        )
    origin = exported(run_dir)
    task = task or (make_task(config) if origin is None else task_of(origin, config))
    task.labels = Labels.from_json(facts["labels"]) if facts["labels"] is not None else None
    if origin is not None:  # nothing else is needed then: neither the base nor a network
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(origin), revision=None))
    if is_tiny(config):
        _begin_with_data(run_dir, config, task, facts["data"])
    else:
        tokenizer = load_tokenizer(config, lambda: iter(()), cache_root())
        task.begin(config, tokenizer, resolve_max_length(config, max_positions(config)))
    return Built(load_model(config, task, task.tokenizer), task)


def _begin_with_data(run_dir: Path, config: Config, task: Task, trained_on: str) -> None:
    """Begin the task with the tokenizer that builtin:tiny makes of its training texts; they must be those of then."""
    from isostep.train.parts import Parts
    from isostep.train.prepare import digest, make_data

    why = f"model.path: {config.model.path} makes its tokenizer of the training texts, and {run_dir} holds no best/ yet"
    if config.data.path is None and config.data.train is None:
        raise ConfigError(f"{why}: they were handed in from Python, so export after the first evaluation")
    if digest(make_data(config, Parts(task))) != trained_on:
        raise ConfigError(f"{why}: the data that config.yaml names is not what this run was trained on")


def _freeze_all_but_stored(folder: Path, model: nn.Module) -> None:
    """What a checkpoint lacks was not trained, since the task never reaches it."""
    from safetensors import safe_open

    from isostep.checkpoint.contents import MODEL

    with safe_open(folder / MODEL, framework="pt") as file:
        stored = set(file.keys())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in stored)


def _results(run_dir: Path, step: int) -> dict[str, float]:
    """What was measured of the weights after `step`: the evaluation, and the test where they were tested."""
    from isostep.track.record import read_rows

    found: dict[str, float] = {}
    for row in read_rows(run_dir / "metrics.jsonl"):
        if row["step"] == step:
            found |= {name: value for name, value in row.items() if name.startswith("eval/") and value is not None}
    status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))
    tested = status["step"] if status["best_step"] is None else status["best_step"]
    if step == tested:
        found |= {name: value for name, value in status.items() if name.startswith("test/") and value is not None}
    return found

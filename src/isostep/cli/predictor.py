"""A trained model that answers rows, a block at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from isostep.cli.run_folder import task_of
from isostep.data.labels import Labels
from isostep.errors import ConfigError
from isostep.models.load import load_trained
from isostep.models.tokenizer import load_tokenizer, position_limit, resolve_max_length
from isostep.tasks import Answers, Task

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.data.files import Block


class Predictor(NamedTuple):
    """A trained model and its task, which knows how rows become batches and batches answers."""

    model: Any
    task: Task

    def __call__(self, block: Block, batch_tokens: int, check: Callable[[], None] = lambda: None) -> Answers:
        """What is told of the block's rows, in their order.

        Rows of similar length share a batch of at most `batch_tokens` tokens with its padding; a longer row is alone.
        `check` is called before each batch, and may raise.
        """
        encoded, _, _, words = self.task.encode(block)
        lengths = [len(row) for row in encoded["input_ids"]]
        made = Answers([None] * len(lengths), [None] * len(lengths))
        with torch.inference_mode():
            for part in batches(lengths, batch_tokens):
                check()
                rows = [{key: values[i] for key, values in encoded.items()} for i in part]
                inputs = {key: value.to(self.model.device) for key, value in self.task.inputs(rows).items()}
                firsts = [words[i] for i in part] if words is not None else None
                answers = self.task.answers(self.model, inputs, firsts)
                for i, prediction, score in zip(part, *answers, strict=True):
                    made.predictions[i], made.scores[i] = prediction, score
        return made


def load(config: Config, task: Task | None = None) -> Predictor:
    """The exported model in the folder model.path with its task, on this rank's device."""
    task = task or task_of(Path(config.model.path), config)
    tokenizer = load_tokenizer(config, lambda: iter(()), Path(config.model.path))
    model: Any = load_trained(config, task.auto_class)
    task.begin(config, tokenizer, resolve_max_length(config, position_limit(model.config)))
    values = getattr(model.config, "label_values", None)
    if values is not None:
        task.labels = Labels(values, [model.config.id2label[index] for index in range(len(values))])
    model.to(device())
    return Predictor(model, task)


def device() -> torch.device:
    """This rank's GPU, or the CPU where there is none or the launcher says so.

    Raises ConfigError where more ranks were started on this machine than it has GPUs.
    """
    if not torch.cuda.is_available() or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("true", "1"):
        return torch.device("cpu")
    rank, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if rank >= there:
        raise ConfigError(f"rank {rank} of this machine has no GPU of its own: it has {there}; start as many ranks")
    return torch.device("cuda", rank)


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of rows by ascending length, cut so that rows x longest stays within `batch_tokens`."""
    part: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if part and (len(part) + 1) * max(1, lengths[index]) > batch_tokens:
            yield part
            part = []
        part.append(index)
    if part:
        yield part

"""The interface between the loop and a task."""

from __future__ import annotations

import inspect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from isostep.data import tokens
from isostep.errors import ConfigError

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from isostep.config import Config
    from isostep.data.files import Block
    from isostep.data.labels import Labels
    from isostep.data.splits import Split


class Encoded(NamedTuple):
    """A block of rows as tokens."""

    columns: dict[str, list[list[int]]]
    """input_ids, and token_type_ids where the model takes them: a list a row."""
    truncated: int = 0
    """Rows that were cut."""
    empty: int = 0
    """Rows with an empty text."""
    words: list[list[int | None]] | None = None
    """Of rows that come as words: for each word where its first token stands, None where that was cut or there is none.
    """


class Outcome(NamedTuple):
    """What one forward pass gives, one entry an item: N is B where each row is one item."""

    losses: Tensor
    """(N,) float32: the loss of each item, never a mean."""
    predictions: Tensor
    """(N, ...) what metrics are computed from."""
    targets: Tensor
    """(N, ...) what the predictions are compared with."""
    rows: Tensor | None = None
    """(N,) int64, ascending: the row of the batch that each item belongs to; None where each row is one item."""


class Answers(NamedTuple):
    """What is told of rows that have no label."""

    predictions: list[Any]
    """For each row what is written as its prediction, in the terms of the data."""
    scores: list[Any]
    """For each row what the prediction rests on."""


class Task(ABC):
    """A task: from rows to tokens and targets, to batches, to item losses and metrics.

    A task never divides: the step divides the summed losses by the weight of the whole window, which no single rank or
    micro-batch sees. It calls the model only as `model(**inputs)`, so that gradients pass through DDP's reducer.

    In order: `begin`, `survey` of the training data, `encode` and `targets` of every split (once; the result is
    cached), `head`, then `collate` and `forward` in each step and `metrics` in each evaluation.
    """

    target_type: ClassVar[pa.DataType] = pa.int64()
    """How `targets` are stored, one a row."""
    auto_class: ClassVar[str]
    """The class of transformers that loads the model."""
    labels: Labels | None = None
    """The classes; None for a task that has none. Set after `survey`."""

    def begin(self, config: Config, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        """Told once, before anything is read: the run, its tokenizer, and how many tokens a row may have."""
        self.config = config
        self.tokenizer = tokenizer
        self.max_length = max_length

    # ---- from rows to tokens

    @abstractmethod
    def input_columns(self, config: Config) -> list[str]:
        """The columns that the model sees. Raises ConfigError where the configuration does not name them."""

    @abstractmethod
    def target_columns(self, config: Config) -> list[str]:
        """The columns that are learned; [] where the inputs are. Raises ConfigError as above."""

    def texts(self, block: Block, columns: Sequence[str]) -> Iterator[str]:
        """The texts in a block's input columns, which builtin:tiny learns its word pieces from; before `begin`."""
        for column in tokens.texts(block, columns):
            yield from column

    def survey(self, train: Split) -> Labels | None:
        """The classes, found by a pass over the training rows. Raises DataError for rows that can't be learned."""
        return None

    def survey_tokenised(self, rows: datasets.Dataset) -> Labels | None:
        """The classes of rows that come as tokens, whose `labels` are what `collate` takes; None if there are none."""
        return None

    def check_tokenised(self, name: str, rows: datasets.Dataset) -> None:  # noqa: B027 - there may be nothing to check
        """Raises DataError where `labels` of tokenised rows are not what `collate` takes; the classes are known."""

    @abstractmethod
    def encode(self, block: Block) -> Encoded:
        """The inputs of a block's rows as tokens, at most `max_length` a row. Raises DataError naming the row."""

    @abstractmethod
    def targets(self, block: Block, encoded: Encoded) -> list[Any]:
        """For each of the block's rows what is to be learned, of `target_type`. Raises DataError naming the row."""

    def label_counts(self, targets: Sequence[Any]) -> npt.NDArray[np.int64]:
        """(C,) how often each class stands in `targets`; only asked where there are classes."""
        raise NotImplementedError

    def fingerprint(self) -> list[str]:
        """What the tokens follow from beside data and tokenizer: the methods that make them.

        Foreign ones by their code, and by the plain values (numbers, texts, lists, dicts) of the task and its class.
        One that reads more, a table in a file say, adds it here.
        """
        methods = [getattr(type(self), name) for name in ("survey", "encode", "targets")]
        return [str(self.target_type), *map(_source, methods), *_plain_values(self)]

    def items(self, rows: datasets.Dataset) -> npt.NDArray[np.int32] | None:
        """(n,) how many items each row counts for; None where each row is one."""
        return None

    # ---- the model, and what it is fed

    def head(self) -> dict[str, Any]:
        """What the model's configuration is to say of its head (problem_type, num_labels ...); `labels` is set."""
        return {}

    @abstractmethod
    def inputs(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """What the model is called with for these rows of tokens."""

    @abstractmethod
    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Rows of the tokenised data as a batch: `inputs`, as above, and `labels`."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: dict[str, Any]) -> Outcome:
        """One pass through the model."""

    # ---- what comes out

    @abstractmethod
    def metrics(self, predictions: Any, targets: Any) -> dict[str, float]:
        """Metrics over a whole evaluation set, each row exactly once, in the set's order.

        (n, ...) arrays; where a row has several items, two lists of n arrays, one a row.
        """

    @abstractmethod
    def answers(
        self, model: nn.Module, inputs: dict[str, Tensor], words: Sequence[Sequence[int | None]] | None = None
    ) -> Answers:
        """What is told of rows without targets; of rows that came as words, `words` are theirs in Encoded."""

    def shown(self, target: Any) -> str | list[str]:
        """A target in the terms of the data; a text a token where each has one of its own. For people to read."""
        if self.labels is None:
            return str(target)
        return f"{self.labels.names[target]} ({target})"


def answers_of_its_own(task: Task) -> list[str]:
    """The methods of a foreign task by which rows become answers in a way that isostep's commands do not know."""
    names = ("input_columns", "encode", "inputs", "decide", "answers")
    there = {name: getattr(type(task), name, None) for name in names}
    return [name for name, method in there.items() if method and not method.__module__.startswith("isostep.")]


def _plain_values(task: Task) -> list[str]:
    """Those of a foreign task that its methods may read, by name; none of a task of isostep's."""
    foreign = list(itertools.takewhile(lambda kind: not kind.__module__.startswith("isostep."), type(task).__mro__))
    found = {name: value for kind in reversed(foreign) for name, value in vars(kind).items()}
    if foreign:
        found |= {name: value for name, value in vars(task).items() if name not in ("config", "max_length", "labels")}
    plain = (str, int, float, list, tuple, dict, set, frozenset)
    return [f"{name}={_ordered(value)!r}" for name, value in sorted(found.items())
            if isinstance(value, plain) and not name.startswith("__")]  # fmt: skip


def _ordered(value: Any) -> Any:
    """Sets as sorted lists: their own order differs between processes."""
    return sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value


def _source(method: Any) -> str:
    if method.__module__.startswith("isostep."):  # tokens.VERSION stands for its code
        return str(method.__qualname__)
    try:
        return f"{method.__qualname__} {inspect.getsource(method)}"
    except OSError:  # typed into an interpreter
        return f"{method.__qualname__} {method.__code__.co_code.hex()} {method.__code__.co_consts!r}"


def at_least_fp32(tensor: Tensor) -> Tensor:
    """bf16 and fp16 as fp32, since sums over many items lose digits there; fp32 and fp64 as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Right-padded (B, T) int64, T the longest row, at least 1."""
    width = max(1, max(len(row) for row in rows))
    out = np.full((len(rows), width), value, dtype=np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned, fp32 or finer: the tensor itself, or what is called `logits` in it.

    Raises ConfigError for anything else: the model is not one for this task.
    """
    found = output
    if not isinstance(output, Tensor):
        found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if not isinstance(found, Tensor):
        raise ConfigError(
            f"fit: the model returned {type(output).__name__} without logits; it must return a tensor of logits, or "
            "something that holds one as `logits`"
        )
    return at_least_fp32(found)

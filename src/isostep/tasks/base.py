"""The interface between the loop and a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from isostep.data.labels import Labels


class Outcome(NamedTuple):
    """What one forward pass gives, one entry an item."""

    losses: Tensor
    """(B,) float32: the loss of each item, never a mean."""
    predictions: Tensor
    """(B, ...) what metrics are computed from."""
    targets: Tensor
    """(B, ...) what the predictions are compared with."""


class Task(ABC):
    """A task: collation, item losses and metrics.

    A task never divides: the step divides the summed losses by the weight of the whole window, which no single rank or
    micro-batch sees. It calls the model only as `model(**inputs)`, so that gradients pass through DDP's reducer.
    """

    def bind(self, tokenizer: PreTrainedTokenizerBase, labels: Labels) -> None:
        """Told once, before training, which tokenizer and labels are used."""
        self.tokenizer = tokenizer
        self.labels = labels

    @abstractmethod
    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Rows of the tokenised data as a batch: `inputs`, a dict of (B, T) tensors, and `labels`."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: dict[str, Any]) -> Outcome:
        """One pass through the model."""

    @abstractmethod
    def metrics(self, predictions: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> dict[str, float]:
        """Metrics over a whole evaluation set: (n, ...), (n, ...), each example exactly once, in the set's order."""


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

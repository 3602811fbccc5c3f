"""What has happened since the last row of the record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isostep.data.plan import Window


@dataclass
class Interval:
    """What has happened since the last row; sums stay on the device until a row is made."""

    loss_sum: Tensor
    """() float64, this rank's."""
    weight: int = 0
    steps: int = 0
    examples: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0

    def add(self, window: Window, loss_sum: Tensor, seconds: float, data_seconds: float) -> None:
        self.loss_sum = self.loss_sum + loss_sum
        self.weight += window.weight
        self.steps += 1
        self.examples += len(window.indices)
        self.tokens += window.tokens
        self.padded_tokens += window.padded_tokens
        self.seconds += seconds
        self.data_seconds += data_seconds


class Timed(Iterator[Any]):
    """An iterator that adds up the seconds its consumer waits for it."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.seconds = 0.0

    def __next__(self) -> Any:
        started = time.perf_counter()
        item = next(self.source)
        self.seconds += time.perf_counter() - started
        return item

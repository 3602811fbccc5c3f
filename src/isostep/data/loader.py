"""From the plan to batches on the device: a batch sampler of parts, a dataset that fetches a part, and its collation.

Parts are emitted rank-interleaved (part j of rank r at position j x world_size + r), so that Accelerate's own
DataLoader wrapper with `even_batches=False` hands each rank its own parts in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from isostep.data.plan import Part, Plan, Window

Row = dict[str, Any]
Batch = dict[str, Any]


class Rows(Protocol):
    """What is needed of a dataset: datasets.Dataset has it."""

    def __len__(self) -> int: ...

    def __getitems__(self, keys: list[int]) -> list[Row]: ...


class TrainSampler:
    """The parts of a plan from a position on, epoch by epoch.

    A plain class on purpose: Accelerate calls `set_epoch` with a counter of its own where it finds that method, and
    drops batches of another size in silence where it finds `batch_size`. The loop says where an iteration begins.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.epoch = 0
        self.first_window = 0

    def start_at(self, epoch: int, window: int) -> None:
        """The next iterator begins at this window of this epoch and ends with the epoch."""
        self.epoch, self.first_window = epoch, window

    def __iter__(self) -> Iterator[Part]:
        for window in self.plan.windows(self.epoch, self.first_window):
            for parts in window.passes:
                yield from parts


class WindowSampler:
    """The parts of one window, for evaluation."""

    def __init__(self, window: Window) -> None:
        self.window = window

    def __iter__(self) -> Iterator[Part]:
        for parts in self.window.passes:
            yield from parts


class PartDataset(Dataset[tuple[Part, list[Row]]]):
    """Fetches all rows of a part at once. Raises RuntimeError naming them where they can't be read."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, part: Part) -> tuple[Part, list[Row]]:
        try:
            return part, self.rows.__getitems__(list(part.indices))
        except Exception as error:
            raise RuntimeError(f"rows {', '.join(map(str, part.indices))} can't be read: {error}") from error


class Collate:
    """A part's rows as tensors, with what the loop itself needs beside them.

    Adds to the task's batch: `weights` (B,) float32, 0 for a placeholder; `indices` (B,) int64, the rows;
    `window`, the number of the window.
    """

    def __init__(self, collate: Callable[[Sequence[Row]], Batch]) -> None:
        self.collate = collate

    def __call__(self, fetched: tuple[Part, list[Row]]) -> Batch:
        part, rows = fetched
        batch = self.collate(rows)
        batch["weights"] = torch.full((len(rows),), float(part.weight))
        batch["indices"] = torch.tensor(part.indices, dtype=torch.int64)
        batch["window"] = part.window
        return batch


def make_loader(
    rows: Rows, sampler: TrainSampler | WindowSampler, collate: Callable[[Sequence[Row]], Batch], workers: int
) -> DataLoader[Any]:
    """A DataLoader over parts, still to be prepared by Accelerate.

    Its generator is its own: making an iterator would otherwise draw from the global one, and a run that was resumed
    (which makes one more iterator) would drop out other units.
    """
    return DataLoader(
        PartDataset(rows),
        batch_sampler=sampler,  # type: ignore[arg-type]  # any iterable of keys serves; see TrainSampler
        collate_fn=Collate(collate),  # type: ignore[arg-type]  # called with what __getitems__ gives
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator().manual_seed(0),
    )

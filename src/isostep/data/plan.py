"""The plan: which examples make up each optimizer step, and how a step is cut into micro-batches.

A *window* is the set of examples of one optimizer step over all ranks. It follows from (seed, epoch, batch size)
alone, never from the hardware. A *part* is what one rank passes through the model at once. How a window is cut into
parts changes speed and memory, never the gradient, since every part's loss sum is divided by the whole window's weight.

Everything here is a pure function of the examples' lengths: each rank computes the same plan and knows every window's
weight without a collective.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class Part(NamedTuple):
    """What one rank passes through the model at once."""

    window: int
    """The number of the window within its epoch."""
    indices: tuple[int, ...]
    """Rows of the dataset, longest first."""
    weight: int
    """1, or 0 for a placeholder: a row that only keeps all ranks at the same number of passes."""


@dataclass(frozen=True)
class Window:
    """One optimizer step's examples and their cut."""

    number: int
    """Its position in the epoch, from 0."""
    indices: Indices
    """(examples,) the rows, in the epoch's order."""
    weight: int
    """Sum of the items' weights: what the summed loss of the window is divided by."""
    tokens: int
    """Real tokens."""
    padded_tokens: int
    """Tokens with padding, placeholders included."""
    passes: tuple[tuple[Part, ...], ...]
    """passes[j][r]: the part of rank r in pass j; every rank has the same number of passes."""


def greedy_starts(lengths: npt.NDArray[np.int64], cap: int) -> list[int]:
    """Starts of the fewest contiguous parts of `lengths` (descending) whose padded size stays within `cap` tokens.

    A part's padded size is its rows x its longest row. A row longer than `cap` is a part of its own.
    """
    starts, start, n = [], 0, len(lengths)
    while start < n:
        starts.append(start)
        start += max(1, cap // int(lengths[start]))
    return starts


def cut(lengths: npt.NDArray[np.int64], world_size: int, budget: int) -> list[list[slice]]:
    """Cut one window into world_size x m parts of balanced padded size, m the least that keeps each within `budget`.

    Args:
        lengths: (examples,) tokens of each example, **descending**, all >= 1.
        world_size: ranks.
        budget: the most tokens in one part, padding included.

    Returns:
        For each rank its m slices of the sorted examples, largest part first; an empty slice where no example is left.

    The parts are runs of the sorted lengths (little padding) whose largest padded size is the smallest possible
    (bisection over the greedy cut, which is optimal for contiguous parts), then dealt to the ranks by the longest
    processing time rule (R. L. Graham, 1969) with m parts for each.
    """
    passes = -(-len(greedy_starts(lengths, budget)) // world_size)
    count = passes * world_size
    # a row longer than the budget is the largest part whatever is done: the others then just keep to the budget
    low, high = min(int(lengths[0]), budget), budget
    while low < high:
        middle = (low + high) // 2
        if len(greedy_starts(lengths, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    starts = greedy_starts(lengths, low)
    parts = _split_largest(lengths, starts, count)
    return _deal(lengths, parts, world_size, passes)


def _cost(lengths: npt.NDArray[np.int64], part: slice) -> int:
    return (part.stop - part.start) * int(lengths[part.start]) if part.stop > part.start else 0


def _split_largest(lengths: npt.NDArray[np.int64], starts: list[int], count: int) -> list[slice]:
    """Up to `count` parts: a free place halves the largest part, since a placeholder would cost a pass for nothing."""
    ends = [*starts[1:], len(lengths)]
    heap = [(-_cost(lengths, slice(a, b)), a, b) for a, b in zip(starts, ends, strict=True)]
    heapq.heapify(heap)
    whole: list[slice] = []
    while heap and len(heap) + len(whole) < count:
        _, a, b = heapq.heappop(heap)
        if b - a == 1:
            whole.append(slice(a, b))
            continue
        middle = (a + b + 1) // 2
        for left, right in ((a, middle), (middle, b)):
            heapq.heappush(heap, (-_cost(lengths, slice(left, right)), left, right))
    return whole + [slice(a, b) for _, a, b in heap]


def _deal(lengths: npt.NDArray[np.int64], parts: list[slice], world_size: int, passes: int) -> list[list[slice]]:
    """The largest part first, each to the rank that has the least so far and a place left."""
    hands: list[list[slice]] = [[] for _ in range(world_size)]
    heap = [(0, 0, rank) for rank in range(world_size)]
    for part in sorted(parts, key=lambda p: (-_cost(lengths, p), p.start)):
        total, held, rank = heapq.heappop(heap)
        hands[rank].append(part)
        if held + 1 < passes:
            heapq.heappush(heap, (total + _cost(lengths, part), held + 1, rank))
    for hand in hands:
        hand.extend([slice(0, 0)] * (passes - len(hand)))
    return hands


def make_window(
    number: int, indices: Indices, lengths: npt.NDArray[np.integer], weight: int, world_size: int, budget: int
) -> Window:
    """The window of `indices`, cut for `world_size` ranks and `budget` tokens a part.

    `lengths` (examples,) belongs to `indices`. A rank without an example for a pass gets a placeholder: the window's
    shortest row with weight 0.
    """
    clipped = np.maximum(lengths.astype(np.int64), 1)
    order = np.argsort(-clipped, kind="stable")
    ordered, lengths_sorted = indices[order], clipped[order]
    hands = cut(lengths_sorted, world_size, budget)
    passes, padded = [], 0
    for j in range(len(hands[0])):
        row = []
        for hand in hands:
            part = hand[j]
            real = part.stop > part.start
            chosen = part if real else slice(len(ordered) - 1, len(ordered))
            padded += _cost(lengths_sorted, chosen)
            row.append(Part(number, tuple(ordered[chosen].tolist()), int(real)))
        passes.append(tuple(row))
    return Window(number, indices, weight, int(clipped.sum()), padded, tuple(passes))


class Plan:
    """All windows of a training run, computed when asked for.

    Args:
        lengths: (n,) tokens of each example.
        batch_size: examples of an optimizer step over all ranks.
        world_size: ranks.
        budget: the most tokens in one part, padding included.
        seed: of the order; with the epoch it alone decides which examples make up a window.
        weights: (n,) items of each example (target tokens, say); None where each example is one item.

    Memory: 4 bytes an example for the lengths and 4 for the current epoch's order; about 24 while an order is made.
    """

    def __init__(
        self,
        lengths: npt.NDArray[np.int32],
        batch_size: int,
        world_size: int,
        budget: int,
        seed: int,
        weights: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self.lengths = lengths
        self.weights = weights
        self.batch_size = batch_size
        self.world_size = world_size
        self.budget = budget
        self.seed = seed
        self.windows_per_epoch = -(-len(lengths) // batch_size)
        self._order = lru_cache(maxsize=2)(self._make_order)  # the epoch in use and the one the loader has begun
        self.window = lru_cache(maxsize=64)(self._make_window)

    def order(self, epoch: int) -> npt.NDArray[np.int32]:
        """(n,) the epoch's permutation: the ranks of n random 64-bit words of PCG64 seeded by (seed, epoch).

        The raw words of a bit generator are the same in every numpy release; Generator.permutation is not promised to
        be (numpy NEP 19), and a resumed run must find its order again.
        """
        return self._order(epoch)

    def _make_order(self, epoch: int) -> npt.NDArray[np.int32]:
        words = np.random.PCG64(np.random.SeedSequence([self.seed, epoch])).random_raw(len(self.lengths))
        return np.argsort(words, kind="stable").astype(np.int32)

    def _make_window(self, epoch: int, number: int) -> Window:
        chosen = self.order(epoch)[number * self.batch_size : (number + 1) * self.batch_size]
        weight = len(chosen) if self.weights is None else int(self.weights[chosen].sum())
        weight = max(weight, 1)  # rows that were cut before their first item have none, and a sum of nothing is 0
        return make_window(number, chosen.astype(np.int64), self.lengths[chosen], weight, self.world_size, self.budget)

    def windows(self, epoch: int, start: int = 0) -> Iterator[Window]:
        """The windows of one epoch from number `start` on."""
        for number in range(start, self.windows_per_epoch):
            yield self.window(epoch, number)


def fixed_subset(n: int, most: int | None, seed: int) -> Indices:
    """Sorted rows of a subset of `most` of `n` rows that depends on the seed alone; all rows where `most` is None."""
    if most is None or most >= n:
        return np.arange(n, dtype=np.int64)
    words = np.random.PCG64(np.random.SeedSequence([seed, 0x5EED])).random_raw(n)
    return np.sort(np.argsort(words, kind="stable")[:most])

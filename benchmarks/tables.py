"""Pure functions of the benchmarks: splits, differences, ratios, markdown tables."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Label = TypeVar("Label", bound=Hashable)


def stratified_split(labels: Sequence[Label], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Row numbers of two parts in file order; the second holds `share` of each label's rows, rounded.

    Raises ValueError when a share is not in (0, 1).
    """
    if not 0 < share < 1:
        raise ValueError(f"a share between 0 and 1 is wanted, not {share}")
    draw = random.Random(seed)
    held: set[int] = set()
    for label in dict.fromkeys(labels):  # order of first appearance: the same on every machine
        rows = [row for row, value in enumerate(labels) if value == label]
        held.update(draw.sample(rows, round(share * len(rows))))
    return [row for row in range(len(labels)) if row not in held], sorted(held)


def worst_relative(reference: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Largest |other - reference| / |reference| of two {step: value}; infinite for other, no or non-finite steps."""
    if not reference or reference.keys() != other.keys():
        return math.inf
    if not all(math.isfinite(value) for value in (*reference.values(), *other.values())):
        return math.inf
    return max(abs(other[step] - value) / max(abs(value), 1e-12) for step, value in reference.items())


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def spread(values: Sequence[float]) -> float:
    """Largest less smallest: three seeds are too few for a standard deviation."""
    return max(values) - min(values)


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table. Raises ValueError when a row has another number of cells than the header."""
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"{len(row)} cells under {len(header)} columns: {row}")
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def quality_table(
    ours: Mapping[int, tuple[float, float]],
    theirs: Mapping[int, tuple[float, float]],
    columns: tuple[str, str],
    scores: tuple[str, str] = ("accuracy", "F1"),
) -> str:
    """Two scores of each seed in both maps, then mean and spread; `columns` names the two trainers' setups.

    Raises ValueError when the seeds differ: means over other seeds are not comparable.
    """
    if ours.keys() != theirs.keys():
        raise ValueError(f"seeds {sorted(ours)} and {sorted(theirs)} differ")
    header = ["seed", *(f"{name}: {score}" for name in columns for score in scores)]
    found = {seed: (*ours[seed], *theirs[seed]) for seed in sorted(ours)}
    rows: list[list[object]] = [[seed, *(f"{value:.4f}" for value in line)] for seed, line in found.items()]
    for name, summary in (("mean", mean), ("spread (max - min)", spread)):
        rows.append([name, *(f"{summary(column):.4f}" for column in zip(*found.values(), strict=True))])
    return markdown(header, rows)


def ratio_table(cuts: Sequence[tuple[int, int, int]], first_steps: Sequence[tuple[float, float]]) -> str:
    """First-step loss and gradient norm of each (ranks, per-device batch, accumulation), and over the first one's."""
    loss, norm = first_steps[0]
    rows = [
        [*cut, f"{got[0]:.4f}", f"{got[1]:.4f}", f"{got[0] / loss:.3g}", f"{got[1] / norm:.3g}"]
        for cut, got in zip(cuts, first_steps, strict=True)
    ]
    header = ["ranks", "per-device batch", "accumulation", "logged loss", "gradient norm", "loss ratio", "norm ratio"]
    return markdown(header, rows)


def difference_table(
    runs: Mapping[tuple[int, int], Mapping[str, Mapping[int, float]]], keys: Sequence[str]
) -> tuple[str, float]:
    """Largest relative difference of each {(ranks, budget): {key: {step: value}}} to the first; the largest of all."""
    reference = next(iter(runs.values()))
    rows: list[list[object]] = []
    largest = 0.0
    for (ranks, budget), series in runs.items():
        found = [worst_relative(reference[key], series[key]) for key in keys]
        largest = max(largest, *found)
        rows.append([ranks, budget, *("reference" if series is reference else f"{value:.1e}" for value in found)])
    return markdown(["ranks", "tokens per micro-batch", *keys], rows), largest

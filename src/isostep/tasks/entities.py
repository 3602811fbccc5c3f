"""Entities in a run of tags: what the CoNLL evaluation counts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_TAG = re.compile(r"O|[BIES]-.+")


def mark_entities(names: Sequence[str]) -> bool:
    """Whether all tags are O, or B-, I-, E- or S- before a type."""
    return all(_TAG.fullmatch(name) for name in names) and any(name != "O" for name in names)


def entities(names: Sequence[str], tags: npt.NDArray[np.integer]) -> set[tuple[int, int, str]]:
    """(first, last, type) of each entity in a run of tags, by the rules of conlleval; -1 is outside of all.

    An entity begins at B- and S-, after O, E- and S-, and where the type changes; it ends before the next one and at O.
    """
    marks = np.array([ord(name[0]) for name in names] + [ord("O")])[tags]
    types = sorted({name[2:] for name in names})
    kinds = np.array([types.index(name[2:]) for name in names] + [-1])[tags]
    inside = marks != ord("O")
    before, kind_before = np.roll(marks, 1), np.roll(kinds, 1)
    before[:1] = ord("O")
    begins = inside & (np.isin(marks, [ord("B"), ord("S")]) | np.isin(before, [ord("E"), ord("S"), ord("O")])
                       | (kinds != kind_before))  # fmt: skip
    starts = np.flatnonzero(begins)
    # an entity reaches to the next place where one begins or none is
    stops = np.flatnonzero(begins | ~inside)
    ends = np.append(stops, len(tags))[np.searchsorted(stops, starts, side="right")] - 1
    found = zip(starts.tolist(), ends.tolist(), kinds[starts].tolist(), strict=True)
    return {(start, end, types[kind]) for start, end, kind in found}

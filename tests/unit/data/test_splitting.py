"""The validation part that is split off."""

from __future__ import annotations

import datasets
import numpy as np
import pytest

from isostep.data.splitting import split_off, validation_rows
from isostep.errors import DataError


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.37, 0.9])
@pytest.mark.parametrize("counts", [[50, 50], [90, 9, 1], [3, 1, 1, 1], [1000, 2], [2]])
def test_stratified(counts: list[int], fraction: float) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    chosen = validation_rows(labels, fraction, seed=3)
    assert len(chosen) >= 1 and (np.diff(chosen) > 0).all()
    for index, count in enumerate(counts):
        taken = int((labels[chosen] == index).sum())
        assert taken <= count - 1  # every class stays in training
        assert abs(taken - min(count * fraction, count - 1)) <= 1


def test_seeded_and_complete() -> None:
    rows = datasets.Dataset.from_dict({"labels": [0, 1, 1, 0] * 25, "row": list(range(100))})
    train, validation = split_off(rows, 0.2, 7)
    assert sorted([*train["row"], *validation["row"]]) == list(range(100)) and len(validation) == 20
    again, other = split_off(rows, 0.2, 7)[1], split_off(rows, 0.2, 8)[1]
    assert list(again["row"]) == list(validation["row"]) != list(other["row"])


def test_the_same_rows_for_ever() -> None:
    """A resumed run must find its validation rows again under any version of NumPy."""
    assert validation_rows(np.arange(30) % 3, 0.2, 42).tolist() == [0, 1, 2, 15, 17, 25]


def test_too_few_rows() -> None:
    with pytest.raises(DataError, match=r"too small .* data\.validation"):
        split_off(datasets.Dataset.from_dict({"labels": [0, 1, 2]}), 0.5, 1)

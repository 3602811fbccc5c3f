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
    train, validation = split_off(rows, 0.2, 7, stratified=True)
    assert sorted([*train["row"], *validation["row"]]) == list(range(100)) and len(validation) == 20
    again, other = (split_off(rows, 0.2, seed, stratified=True)[1] for seed in (7, 8))
    assert list(again["row"]) == list(validation["row"]) != list(other["row"])


def test_the_same_rows_for_ever() -> None:
    """A resumed run must find its validation rows again under any version of NumPy."""
    assert validation_rows(np.arange(30) % 3, 0.2, 42).tolist() == [0, 1, 2, 15, 17, 25]


def test_too_few_rows() -> None:
    with pytest.raises(DataError, match=r"too small .* data\.validation"):
        split_off(datasets.Dataset.from_dict({"labels": [0, 1, 2]}), 0.5, 1, stratified=True)


def test_without_strata_any_rows_go_and_a_column_of_any_type_will_do() -> None:
    labels = [0.5] * 3 + [float(n) for n in range(97)]
    rows = datasets.Dataset.from_dict({"labels": labels, "row": list(range(100))})
    train, validation = split_off(rows, 0.25, 7, stratified=False)
    assert len(validation) == 25 and sorted([*train["row"], *validation["row"]]) == list(range(100))
    assert list(validation["row"]) == validation_rows(np.zeros(100, np.int64), 0.25, 7).tolist()
    lists = datasets.Dataset.from_dict({"labels": [[0, 1], [1]] * 5})
    assert len(split_off(lists, 0.2, 7, stratified=False)[1]) == 2
    with pytest.raises(DataError, match=r"too small .* data\.validation"):
        split_off(rows.select([0]), 0.5, 1, stratified=False)

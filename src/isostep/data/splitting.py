"""A validation part split off from the training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isostep.errors import DataError

if TYPE_CHECKING:
    import datasets


def split_off(
    dataset: datasets.Dataset, fraction: float, seed: int, stratified: bool
) -> tuple[datasets.Dataset, datasets.Dataset]:
    """(train, validation), both in the rows' order; about `fraction` of every class (`stratified`) goes to validation.

    A class of one row stays in training. Raises DataError where no class has two rows.
    """
    classes = dataset.data.column("labels").to_numpy() if stratified else np.zeros(len(dataset), np.int64)
    chosen = validation_rows(classes, fraction, seed)
    if not len(chosen):
        raise DataError(
            f"the training data is too small to split a validation part off its {len(dataset)} rows: no label occurs "
            "twice; name a file in data.validation"
        )
    rest = np.setdiff1d(np.arange(len(dataset)), chosen, assume_unique=True)
    return dataset.select(rest), dataset.select(chosen)


def validation_rows(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """The rows that go to validation, sorted, int64 of shape (chosen,).

    Each class gives fraction x its rows and keeps at least one in training; what the rounding leaves over goes to the
    largest remainders, and at least one row is chosen. The same labels and seed give the same rows everywhere.
    """
    classes, counts = np.unique(labels, return_counts=True)
    most = counts - 1
    quota = np.minimum(counts * fraction, most)
    taken = np.floor(quota).astype(np.int64)
    wanted = min(max(1, round(float(quota.sum()))), int(most.sum()))
    for index in np.argsort(-(quota - taken), kind="stable"):
        if taken.sum() < wanted and taken[index] < most[index]:
            taken[index] += 1
    random = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32])  # its stream is frozen; default_rng's is not
    rows = [
        random.permutation(np.flatnonzero(labels == name))[:take] for name, take in zip(classes, taken, strict=True)
    ]
    return np.sort(np.concatenate(rows)).astype(np.int64)

"""Any number of labels for one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from isostep.data.labels import Labels
from isostep.errors import ConfigError, DataError
from isostep.tasks.base import Answers, Encoded, logits_of
from isostep.tasks.classification import named
from isostep.tasks.text import TextTask

if TYPE_CHECKING:
    import datasets

    from isostep.config import Config
    from isostep.data.files import Block
    from isostep.data.splits import Split

YES, NO = frozenset({1, "1", "true", "True"}), frozenset({0, "0", "false", "False"})


class MultiLabel(TextTask):
    """Binary cross-entropy of each class on its own, one item a row: the mean over the classes.

    Labels are several columns that hold 0 or 1 (data.label is a list), or one column that holds lists of labels.
    """

    target_type = pa.list_(pa.int8())
    label_dtype = torch.float32
    labels: Labels

    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, C) logits, (B, C) zeros and ones -> (B,) losses: transformers' mean over rows and classes, row by row."""
        labels = labels.to(logits.dtype)  # torch works in the labels' type, which would round a float64 model's losses
        return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(-1)

    def decide(self, logits: Tensor) -> Tensor:
        """(B, C) -> (B, C) bool: where the probability is above one half."""
        return logits > 0

    def target_columns(self, config: Config) -> list[str]:
        label = config.data.label
        columns = [label] if isinstance(label, str) else list(label or ())
        twice = [column for column in columns if columns.count(column) > 1 or column in self.input_columns(config)]
        if not columns or twice:
            raise ConfigError(f"data.label: name the columns of the labels, or the one that holds lists (got {label})")
        return columns

    def survey(self, train: Split) -> Labels:
        columns = self.target_columns(self.config)
        if len(columns) > 1:
            return Labels(list(columns), list(columns))
        column, seen = columns[0], set()
        for block in train.blocks(columns):
            for row, listed in enumerate(block.columns[column]):
                seen |= set(_listed(listed, block, row, column))
        if column in train.label_names:
            names = train.label_names[column]
            return Labels(list(range(len(names))), names)
        if len({type(value) for value in seen}) > 1:
            raise DataError(f"column {column!r} holds labels of several types; make them one type")
        if not seen:
            raise DataError(f"column {column!r}: no row has a label")
        return Labels.of(sorted(seen))

    def survey_tokenised(self, rows: datasets.Dataset) -> Labels:
        return Labels.of(list(range(len(rows[0]["labels"]))))

    def check_tokenised(self, name: str, rows: datasets.Dataset) -> None:
        wanted = len(self.labels)
        for at, marks in enumerate(rows["labels"], 1):
            if len(marks) != wanted or not set(marks) <= {0, 1}:
                raise DataError(
                    f"{name}, row {at}: 'labels' of tokenised rows must be lists of one length, 0 or 1 for each class "
                    f"(here {wanted} as in the first row of train; got {str(marks)[:60]})"
                )

    def targets(self, block: Block, encoded: Encoded) -> list[list[int]]:
        columns = self.target_columns(self.config)
        if len(columns) > 1:
            marks = [[_mark(v, block, row, name) for row, v in enumerate(block.columns[name])] for name in columns]
            return [list(row) for row in zip(*marks, strict=True)]
        return [self._row(listed, block, row, columns[0]) for row, listed in enumerate(block.columns[columns[0]])]

    def _row(self, listed: Any, block: Block, row: int, column: str) -> list[int]:
        marks = [0] * len(self.labels)
        for value in _listed(listed, block, row, column):
            try:
                marks[self.labels.index(value)] = 1
            except KeyError:
                raise DataError(
                    f"{block.place(row)}: label {value!r} (column {column!r}) does not occur in the training data"
                ) from None
        return marks

    def label_counts(self, targets: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
        return np.asarray(targets, dtype=np.int64).sum(0)

    def head(self) -> dict[str, Any]:
        return {"num_labels": len(self.labels), "problem_type": "multi_label_classification", **named(self.labels)}

    def metrics(self, predictions: npt.NDArray[np.bool_], targets: npt.NDArray[np.float32]) -> dict[str, float]:
        """Share of rows that are right in every class; F1, precision and recall over all decisions (micro) and as the
        mean over the classes (macro). A score that has no case is 0."""
        from sklearn.metrics import accuracy_score, precision_recall_fscore_support

        truth, found = targets.astype(np.int64), predictions.astype(np.int64)
        only = [1] if truth.shape[1] == 1 else None  # one column would be read as the two classes 0 and 1
        made = {"accuracy": float(accuracy_score(truth, found))}
        for average in ("micro", "macro"):
            p, r, f, _ = precision_recall_fscore_support(truth, found, labels=only, average=average, zero_division=0)
            made |= {f"f1_{average}": float(f), f"precision_{average}": float(p), f"recall_{average}": float(r)}
        return made

    def answers(
        self, model: nn.Module, inputs: dict[str, Tensor], words: Sequence[Sequence[int | None]] | None = None
    ) -> Answers:
        """The list of labels above one half, and the probability of each by its name."""
        scores = logits_of(model(**inputs)).sigmoid().cpu().numpy()
        values = self.labels.values
        predictions = [[values[c] for c in np.flatnonzero(row > 0.5).tolist()] for row in scores]
        return Answers(predictions, [dict(zip(self.labels.names, row, strict=True)) for row in scores.tolist()])

    def shown(self, target: Sequence[int]) -> str:
        chosen = [f"{self.labels.names[c]} ({c})" for c in np.flatnonzero(target).tolist()]
        return f"[{', '.join(chosen)}]"


def _mark(value: Any, block: Block, row: int, column: str) -> int:
    if isinstance(value, (bool, int, float, str)):
        if value in YES:
            return 1
        if value in NO:
            return 0
    raise DataError(f"{block.place(row)}: {value!r} is neither 0 nor 1 (column {column!r})")


def _listed(value: Any, block: Block, row: int, column: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(item, (int, str)) for item in value):
        raise DataError(
            f"{block.place(row)}: {str(value)[:60]!r} is no list of labels (column {column!r}); give lists, in "
            "jsonl or parquet, or several columns of 0 and 1"
        )
    return value

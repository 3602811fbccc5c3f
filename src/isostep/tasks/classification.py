"""Single-label classification of one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.nn import functional

from isostep.data import labels as classes
from isostep.data.labels import Labels
from isostep.errors import DataError
from isostep.tasks.base import Answers, Encoded, logits_of
from isostep.tasks.text import TextTask

if TYPE_CHECKING:
    import datasets

    from isostep.data.files import Block
    from isostep.data.splits import Split


class Classification(TextTask):
    """Cross-entropy over classes. Subclass and override `item_losses` for another loss."""

    labels: Labels

    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, C) logits, (B,) int64 labels -> (B,) losses."""
        return functional.cross_entropy(logits, labels, reduction="none")

    def decide(self, logits: Tensor) -> Tensor:
        """(B, C) -> (B,) int64."""
        return logits.argmax(-1)

    def survey(self, train: Split) -> Labels:
        return classes.find(train, self.target_columns(self.config)[0])

    def survey_tokenised(self, rows: datasets.Dataset) -> Labels:
        values = _numbers("train", rows)
        if values.max() < 1:
            raise DataError("train: every label of the tokenised rows is 0; a classifier needs two or more")
        return Labels.of(list(range(int(values.max()) + 1)))

    def check_tokenised(self, name: str, rows: datasets.Dataset) -> None:
        odd = np.flatnonzero(_numbers(name, rows) >= len(self.labels))
        if len(odd):
            raise DataError(
                f"{name}, row {odd[0] + 1}: label {rows[int(odd[0])]['labels']} is none of the {len(self.labels)} "
                "classes, which are numbered from 0"
            )

    def targets(self, block: Block, encoded: Encoded) -> list[int]:
        return classes.indices(self.labels, block, self.target_columns(self.config)[0])

    def label_counts(self, targets: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.bincount(targets, minlength=len(self.labels))

    def head(self) -> dict[str, Any]:
        return {"num_labels": len(self.labels), "problem_type": "single_label_classification", **named(self.labels)}

    def answers(
        self, model: nn.Module, inputs: dict[str, Tensor], words: Sequence[Sequence[int | None]] | None = None
    ) -> Answers:
        """The label as in the data, and the probability of each by its name."""
        scores = logits_of(model(**inputs)).softmax(-1).cpu().numpy()
        predictions = [self.labels.values[index] for index in scores.argmax(-1)]
        return Answers(predictions, [dict(zip(self.labels.names, row, strict=True)) for row in scores.tolist()])

    def metrics(self, predictions: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> dict[str, float]:
        """Accuracy, Matthews, F1, precision and recall (of the second of two labels, else macro), macro means.

        A score that has no case in the set (no prediction of a class, say) is 0, as in scikit-learn with
        zero_division=0.
        """
        from sklearn.metrics import accuracy_score, matthews_corrcoef, precision_recall_fscore_support

        classes = list(range(len(self.labels.values)))

        def scores(average: str) -> tuple[float, float, float]:
            p, r, f, _ = precision_recall_fscore_support(
                targets, predictions, labels=classes if average == "macro" else None, average=average, zero_division=0
            )
            return float(p), float(r), float(f)

        varied = len(np.union1d(targets, predictions)) > 1
        macro = scores("macro")
        plain = scores("binary") if len(classes) == 2 else macro
        return {
            "accuracy": float(accuracy_score(targets, predictions)),
            "f1": plain[2],
            "precision": plain[0],
            "recall": plain[1],
            "f1_macro": macro[2],
            "precision_macro": macro[0],
            "recall_macro": macro[1],
            # 0 by definition where all are of one class, which scikit-learn says with a warning too
            "mcc": float(matthews_corrcoef(targets, predictions)) if varied else 0.0,
        }


def _numbers(name: str, rows: datasets.Dataset) -> npt.NDArray[np.int64]:
    values = np.asarray(rows.data.column("labels").to_numpy())
    if values.dtype.kind not in "iu" or values.min() < 0:
        raise DataError(f"{name}: the column 'labels' of tokenised rows must hold the classes' numbers, from 0")
    return values


def named(labels: Labels) -> dict[str, Any]:
    """What a model's configuration says of its classes; label_values are theirs as in the data."""
    values = [value.item() if hasattr(value, "item") else value for value in labels.values]  # JSON knows no numpy
    return {"id2label": dict(labels.id2label), "label2id": dict(labels.label2id), "label_values": values}

"""A number for one text or a pair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn

from isostep.errors import DataError
from isostep.tasks.base import Answers, Encoded, logits_of
from isostep.tasks.text import TextTask

if TYPE_CHECKING:
    import datasets

    from isostep.data.files import Block


class Regression(TextTask):
    """Squared error of one number a row, learned as it is: scale large numbers in the data."""

    target_type = pa.float64()
    label_dtype = torch.float32

    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, 1) logits, (B,) numbers -> (B,) losses."""
        return (logits.squeeze(-1) - labels).square()

    def decide(self, logits: Tensor) -> Tensor:
        """(B, 1) -> (B,) float32."""
        return logits.squeeze(-1)

    def targets(self, block: Block, encoded: Encoded) -> list[float]:
        column = self.target_columns(self.config)[0]
        return [_number(value, block, row, column) for row, value in enumerate(block.columns[column])]

    def check_tokenised(self, name: str, rows: datasets.Dataset) -> None:
        values = np.asarray(rows.data.column("labels").to_numpy())
        odd = np.flatnonzero(~np.isfinite(values)) if values.dtype.kind in "iuf" else [0]
        if len(odd):
            raise DataError(f"{name}, row {odd[0] + 1}: {rows[int(odd[0])]['labels']} in 'labels' is no finite number")

    def head(self) -> dict[str, Any]:
        return {"num_labels": 1, "problem_type": "regression"}

    def metrics(self, predictions: npt.NDArray[np.float32], targets: npt.NDArray[np.float32]) -> dict[str, float]:
        """Mean squared and absolute error, its root, R2, and the correlations of Pearson and Spearman.

        A correlation of values that are all the same is not defined: it is 0 here, as is R2 of one row.
        """
        from scipy.stats import pearsonr, spearmanr
        from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

        p, t = predictions.astype(np.float64), targets.astype(np.float64)
        if not np.isfinite(p).all():
            return dict.fromkeys(("mse", "rmse", "mae", "r2", "pearson", "spearman"), math.nan)
        varied = len(t) > 1 and np.ptp(p) > 0 and np.ptp(t) > 0
        mse = float(mean_squared_error(t, p))
        return {
            "mse": mse,
            "rmse": math.sqrt(mse),
            "mae": float(mean_absolute_error(t, p)),
            "r2": float(r2_score(t, p)) if len(t) > 1 else 0.0,
            "pearson": float(pearsonr(p, t).statistic) if varied else 0.0,
            "spearman": float(spearmanr(p, t).statistic) if varied else 0.0,
        }

    def answers(
        self, model: nn.Module, inputs: dict[str, Tensor], words: Sequence[Sequence[int | None]] | None = None
    ) -> Answers:
        """The number, which is its own score."""
        values = self.decide(logits_of(model(**inputs))).tolist()
        return Answers(values, [{"value": value} for value in values])


def _number(value: Any, block: Block, row: int, column: str) -> float:
    if isinstance(value, str):  # csv and tsv know nothing else
        try:
            value = float(value)
        except ValueError:
            said = "is empty" if not value.strip() else f"{value[:60]!r} is no number"
            raise DataError(f"{block.place(row)}: the target {said} (column {column!r})") from None
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        said = "is missing" if value is None else f"is {type(value).__name__}, not a number"
        raise DataError(f"{block.place(row)}: the target {said} (column {column!r})")
    if not abs(value) <= float(np.finfo(np.float32).max):
        raise DataError(f"{block.place(row)}: the target {value!r} is not finite in fp32 (column {column!r})")
    return float(value)

"""Single-label classification of one text or a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from isostep.tasks.base import Outcome, Task, at_least_fp32, pad


class Classification(Task):
    """Cross-entropy over classes. Subclass and override `item_losses` for another loss."""

    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, C) float32 logits, (B,) int64 labels -> (B,) losses."""
        return functional.cross_entropy(logits, labels, reduction="none")

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        tokens = [row["input_ids"] for row in rows]
        inputs = {
            "input_ids": pad(tokens, int(self.tokenizer.pad_token_id)),
            "attention_mask": pad([[1] * len(row) for row in tokens], 0),
        }
        if "token_type_ids" in rows[0]:
            inputs["token_type_ids"] = pad([row["token_type_ids"] for row in rows], 0)
        return {"inputs": inputs, "labels": torch.tensor([int(row["labels"]) for row in rows], dtype=torch.int64)}

    def forward(self, model: nn.Module, batch: dict[str, Any]) -> Outcome:
        logits = at_least_fp32(model(**batch["inputs"]).logits)  # (B, C)
        labels = batch["labels"]  # (B,)
        losses = self.item_losses(logits, labels)
        if losses.shape != labels.shape:
            raise ValueError(
                f"{type(self).__name__}.item_losses gave shape {tuple(losses.shape)} for {len(labels)} items; "
                f"it must give one loss an item, shape ({len(labels)},)"
            )
        return Outcome(losses, logits.argmax(-1), labels)

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

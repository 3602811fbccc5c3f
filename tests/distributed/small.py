"""Ragged rows, small BERTs in float64 and plain item losses of each kind, for programs that compare with torch."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from isostep.data.labels import Labels
from isostep.tasks import Classification, MultiLabel, Outcome, Regression, Task, TextTask
from isostep.tasks.base import logits_of

CLASSES = 3
IGNORED = -100
KINDS = ("classification", "regression", "multi_label", "tags")


class Rows:
    """Ragged rows of 1 to 40 tokens with the labels of a kind; of "tags" some tokens have one, in one row in six none.

    `items` holds how many labels each row has.
    """

    def __init__(self, n: int, kind: str = "classification") -> None:
        draw = np.random.default_rng(0)
        self.lengths = draw.integers(1, 41, n).astype(np.int32)
        self.rows = [
            {
                "input_ids": draw.integers(5, 60, size).tolist(),
                "token_type_ids": [0] * size,
                "labels": _label(kind, draw, 0 if number % 6 == 5 else size),
            }
            for number, size in enumerate(self.lengths.tolist())
        ]
        self.items = np.array(
            [sum(tag != IGNORED for tag in row["labels"]) if kind == "tags" else 1 for row in self.rows], np.int32
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, keys: list[int]) -> list[dict[str, Any]]:
        return [self.rows[key] for key in keys]


def _label(kind: str, draw: np.random.Generator, tagged: int) -> Any:
    if kind == "classification":
        return int(draw.integers(CLASSES))
    if kind == "regression":
        return float(np.float32(draw.normal()))
    if kind == "multi_label":
        return draw.integers(0, 2, CLASSES).tolist()
    tags = draw.integers(CLASSES, size=tagged)
    tags[1:][draw.random(max(tagged - 1, 0)) < 0.4] = IGNORED
    return tags.tolist()


class Tags(TextTask):
    """A class for each token that has a label: a row counts as many items as it has labels."""

    labels: Labels

    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, reduction="none")

    def decide(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)

    def targets(self, block: Any, encoded: Any) -> list[Any]:
        raise AssertionError("the rows are tokens already")

    def answers(self, model: nn.Module, inputs: dict[str, Tensor]) -> Any:
        raise AssertionError("nothing is predicted")

    def items(self, rows: Any) -> npt.NDArray[np.int32]:
        return rows.items

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        inputs = self.inputs(rows)
        labels = torch.full_like(inputs["input_ids"], IGNORED)
        for row, tags in zip(labels, (row["labels"] for row in rows), strict=True):
            row[: len(tags)] = torch.tensor(tags, dtype=torch.int64)
        return {"inputs": inputs, "labels": labels}

    def forward(self, model: nn.Module, batch: dict[str, Any]) -> Outcome:
        tagged = batch["labels"] != IGNORED
        logits, labels = logits_of(model(**batch["inputs"]))[tagged], batch["labels"][tagged]
        return Outcome(self.item_losses(logits, labels), self.decide(logits), labels, tagged.nonzero()[:, 0])

    def metrics(self, predictions: list[Any], targets: list[Any]) -> dict[str, float]:
        right = sum(int((p == t).sum()) for p, t in zip(predictions, targets, strict=True))
        return {"accuracy": right / sum(map(len, targets)), "rows": len(targets)}


def make_task(kind: str) -> Task:
    made = {"classification": Classification, "regression": Regression, "multi_label": MultiLabel, "tags": Tags}[kind]()
    made.begin(None, SimpleNamespace(pad_token_id=0), 64)  # type: ignore[arg-type]
    if kind != "regression":
        made.labels = Labels.of(list(range(CLASSES)))
    return made


def bert(kind: str = "classification") -> torch.nn.Module:
    torch.manual_seed(3)
    shape = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                       max_position_embeddings=64, num_labels=1 if kind == "regression" else CLASSES,
                       hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # fmt: skip
    made = BertForTokenClassification if kind == "tags" else BertForSequenceClassification
    return made(shape).double()


def plain(kind: str, net: torch.nn.Module, row: dict[str, Any]) -> list[tuple[Tensor, Any, Any]]:
    """(loss, prediction, target) of each item of one row, taken alone: no padding, no task, sums written out."""
    logits = net(input_ids=torch.tensor([row["input_ids"]])).logits[0]
    label = row["labels"]
    if kind == "regression":
        return [((logits[0] - label) ** 2, logits[0].item(), label)]
    if kind == "multi_label":
        chances = logits.sigmoid()
        losses = [-torch.log(chance if yes else 1 - chance) for chance, yes in zip(chances, label, strict=True)]
        return [(sum(losses) / len(losses), [bool(chance > 0.5) for chance in chances], label)]
    pairs = [(logits, label)] if kind == "classification" else zip(logits, label, strict=False)
    return [(-scores.log_softmax(-1)[at], int(scores.argmax()), at) for scores, at in pairs if at != IGNORED]

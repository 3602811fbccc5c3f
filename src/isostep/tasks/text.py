"""What tasks on one text or a pair of texts share: tokens, padded batches, one item a row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isostep.data import tokens
from isostep.errors import ConfigError
from isostep.tasks.base import Encoded, Outcome, Task, logits_of, pad

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.data.files import Block


class TextTask(Task):
    """One text or a pair of texts and one item a row; a subclass says what is learned of it."""

    auto_class = "AutoModelForSequenceClassification"
    label_dtype: torch.dtype = torch.int64

    @abstractmethod
    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, ...) logits of at least fp32 and (B, ...) labels -> (B,) losses."""

    @abstractmethod
    def decide(self, logits: Tensor) -> Tensor:
        """(B, ...) logits -> (B, ...) predictions, as `metrics` takes them."""

    def input_columns(self, config: Config) -> list[str]:
        text = list(config.data.text or (["text"] if _is_builtin(config) else []))
        if len(text) not in (1, 2) or len(set(text)) != len(text):
            raise ConfigError(f"data.text: name the one or two columns that hold the text, as a list (got {text})")
        return text

    def target_columns(self, config: Config) -> list[str]:
        label = config.data.label or ("label" if _is_builtin(config) else None)
        if not isinstance(label, str):
            raise ConfigError(f"data.label: name the one column that holds the label (got {label})")
        if label in self.input_columns(config):
            raise ConfigError(
                f"data.text, data.label: a column is named twice in {[*self.input_columns(config), label]}"
            )
        return [label]

    def encode(self, block: Block) -> Encoded:
        columns = tokens.texts(block, self.input_columns(self.config))
        made, cut = tokens.encode(self.tokenizer, columns, self.max_length)
        return Encoded(made, cut, sum(not all(text.strip() for text in row) for row in zip(*columns, strict=True)))

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "inputs": self.inputs(rows),
            "labels": torch.tensor([r["labels"] for r in rows], dtype=self.label_dtype),
        }

    def inputs(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """input_ids, attention_mask and, where the rows hold them, token_type_ids: (B, T), padded on the right."""
        ids = [row["input_ids"] for row in rows]
        inputs = {
            "input_ids": pad(ids, int(self.tokenizer.pad_token_id)),
            "attention_mask": pad([[1] * len(row) for row in ids], 0),
        }
        if "token_type_ids" in rows[0]:
            inputs["token_type_ids"] = pad([row["token_type_ids"] for row in rows], 0)
        return inputs

    def forward(self, model: nn.Module, batch: dict[str, Any]) -> Outcome:
        return self.outcome(logits_of(model(**batch["inputs"])), batch["labels"])

    def outcome(self, logits: Tensor, labels: Tensor, rows: Tensor | None = None) -> Outcome:
        """Losses and predictions of items with these logits (N, ...) and labels (N, ...), which belong to `rows` (N,).

        Raises ValueError where `item_losses` does not give one loss an item.
        """
        losses = self.item_losses(logits, labels)
        if losses.shape != labels.shape[:1]:
            raise ConfigError(
                f"fit: {type(self).__name__}.item_losses gave shape {tuple(losses.shape)} for {len(labels)} items; "
                f"it must give one loss an item, shape ({len(labels)},)"
            )
        return Outcome(losses, self.decide(logits), labels, rows)


def _is_builtin(config: Config) -> bool:
    return str(config.data.path).startswith("builtin:")

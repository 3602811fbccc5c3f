"""Ragged rows and a small BERT in float64, for programs that compare with plain torch."""

from __future__ import annotations

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification


class Rows:
    """Ragged rows of 1 to 40 tokens."""

    def __init__(self, n: int) -> None:
        draw = np.random.default_rng(0)
        self.lengths = draw.integers(1, 41, n).astype(np.int32)
        self.rows = [
            {
                "input_ids": draw.integers(5, 60, size).tolist(),
                "token_type_ids": [0] * size,
                "labels": int(draw.integers(3)),
            }
            for size in self.lengths.tolist()
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitems__(self, keys: list[int]) -> list[dict[str, object]]:
        return [self.rows[key] for key in keys]


def bert() -> torch.nn.Module:
    torch.manual_seed(3)
    shape = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                       max_position_embeddings=64, num_labels=3, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0)  # fmt: skip
    return BertForSequenceClassification(shape).double()

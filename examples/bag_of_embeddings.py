"""A plain nn.Module with a collation of its own: the mean of a text's embeddings, flat and without padding.

accelerate launch --config_file accelerate_configs/cpu_2.yaml examples/bag_of_embeddings.py [--section.key value ...]
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from isostep import Config, fit
from isostep.tasks import Classification

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "quickstart.yaml"


class Flat(Classification):
    """Texts end to end: the tokens of all rows (T,), and where each row begins (B,)."""

    def inputs(self, rows):
        sizes = torch.tensor([len(row["input_ids"]) for row in rows])
        return {"ids": torch.tensor([i for row in rows for i in row["input_ids"]]), "offsets": sizes.cumsum(0) - sizes}


class Bag(nn.Module):
    def __init__(self, task: Flat) -> None:  # made when the data is known, and so vocabulary and classes
        super().__init__()
        self.embeddings = nn.EmbeddingBag(len(task.tokenizer), 64, mode="mean")
        self.head = nn.Linear(64, len(task.labels))

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:  # what `inputs` gives -> logits (B, C)
        return self.head(self.embeddings(ids, offsets))


if __name__ == "__main__":
    config = Config.load(CONFIG, overrides=["--run.name", "bag-of-embeddings", "--optim.lr", "0.05", *sys.argv[1:]])
    fit(config, task=Flat(), model=Bag, resume=True)

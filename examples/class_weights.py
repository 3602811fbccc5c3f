"""Class weights: errors on the rare class count more. Of a task's own there is only the loss of each item.

accelerate launch --config_file accelerate_configs/cpu_2.yaml examples/class_weights.py [--section.key value ...]
"""

import sys
from pathlib import Path

from torch import Tensor
from torch.nn import functional

from isostep import Config, fit
from isostep.tasks import Classification

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "quickstart.yaml"


class Weighted(Classification):
    """Cross-entropy times the weight of the item's own class; what divides the sum stays the number of items."""

    def __init__(self, **weights: float) -> None:
        self.weights = weights

    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(B, C), (B,) -> (B,)"""
        weights = logits.new_tensor([self.weights[name] for name in self.labels.names])  # (C,) in the classes' order
        return functional.cross_entropy(logits, labels, weights, reduction="none")


if __name__ == "__main__":
    config = Config.load(CONFIG, overrides=["--run.name", "class-weights", *sys.argv[1:]])
    fit(config, task=Weighted(ham=1.0, spam=4.0), resume=True)

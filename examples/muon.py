"""Another optimizer: Muon for the matrices of the layers and AdamW for all else, as one.

accelerate launch --config_file accelerate_configs/cpu_2.yaml examples/muon.py [--section.key value ...]
"""

import sys
from pathlib import Path

import torch

from isostep import Config, fit

CONFIG = Path(__file__).resolve().parents[1] / "configs" / "quickstart.yaml"


class MuonAdamW(torch.optim.Optimizer):
    """One list of groups for the schedule and one state for checkpoints, worked on by two optimizers."""

    def __init__(self, groups):
        rules = {"muon": [], "adamw": []}
        for group in groups:  # params, their names, lr, weight_decay
            for name, weight in zip(group["names"], group["params"], strict=True):
                rule = rules["muon" if ".layer" in name and weight.ndim == 2 else "adamw"]
                rule.append({"params": weight, "lr": group["lr"], "weight_decay": group["weight_decay"]})
        self.muon = torch.optim.Muon(rules["muon"], adjust_lr_fn="match_rms_adamw")  # one learning rate suits both
        self.adamw = torch.optim.AdamW(rules["adamw"])
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})

    def step(self, closure=None):
        cut = len(self.muon.param_groups)
        for rule, groups in ((self.muon, self.param_groups[:cut]), (self.adamw, self.param_groups[cut:])):
            rule.state, rule.param_groups = self.state, groups  # anew: a resume puts others in their place
            rule.step()


if __name__ == "__main__":
    fit(Config.load(CONFIG, overrides=["--run.name", "muon", *sys.argv[1:]]), optimizer=MuonAdamW, resume=True)

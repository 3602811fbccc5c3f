"""On two ranks: losses that are not finite on the last rank alone, once and for ever.

Arguments: the folder of the runs, and `skip` or `stop`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from isostep.config import Config
from isostep.errors import DivergedError
from isostep.tasks import Classification
from isostep.train.fit import fit


class Poisoned(Classification):
    """NaN on the last rank in each of the given training steps (one pass a step)."""

    def __init__(self, steps: range) -> None:
        self.steps = steps
        self.step = -1  # the pass that finds unused parameters and the warm-up come first

    def item_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses = super().item_losses(logits, labels)
        if not torch.is_grad_enabled():
            return losses
        self.step += 1
        last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        return losses * float("nan") if last and self.step - 1 in self.steps else losses


def run(
    folder: str, name: str, steps: range, *overrides: str
) -> tuple[list[dict[str, object]], dict[str, object], bool]:
    config = Config.load(overrides=[
        "--run.name", name, "--run.root", folder, "--data.path", "builtin:sms", "--model.path", "builtin:tiny",
        "--data.max_train_examples", "64", "--batch.size", "8", "--batch.tokens_per_device", "100000",
        "--train.epochs", "1", "--eval.every", "4", "--eval.max_examples", "20", "--track.wandb", "disabled",
        "--track.log_every", "1", "--train.nonfinite_limit", "3", *overrides])  # fmt: skip
    diverged = False
    try:
        fit(config, task=Poisoned(steps))
    except DivergedError as error:
        diverged = error.exit_code == 4
    if os.environ["RANK"] != "0":  # which alone writes the folder
        sys.exit(0)
    home = Path(folder, name)
    rows = [json.loads(line) for line in (home / "metrics.jsonl").read_text().splitlines()]
    return rows, json.loads((home / "status.json").read_text()), diverged


def main(folder: str, case: str) -> None:
    if case == "once":
        rows, status, diverged = run(folder, case, range(3, 4))
        assert not diverged and status["state"] == "completed" and status["nonfinite"] == 1
        losses = {row["step"]: row["train/loss"] for row in rows}
        assert [step for step, loss in losses.items() if loss is None] == [3], "shown at its step, not averaged away"
        assert [row["step"] for row in rows if row.get("train/nonfinite")] == [4, 5, 6, 7, 8]
        weights = load_file(Path(folder, case, "final", "model.safetensors"))
        assert all(torch.isfinite(value).all() for value in weights.values())
        assert math.isfinite(float(str(status["best_value"])))
    elif case == "for ever":
        rows, status, diverged = run(folder, case, range(5, 99))
        assert diverged and (status["state"], status["exit_code"], status["best_step"]) == ("diverged", 4, 4)
        assert status["nonfinite"] == 3
    else:
        rows, status, diverged = run(folder, case, range(2, 3), "--train.nonfinite", "stop")
        assert diverged and (status["state"], status["nonfinite"]) == ("diverged", 1)


if __name__ == "__main__":
    main(*sys.argv[1:])

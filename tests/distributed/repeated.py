"""On two ranks: fit() several times in one process, with a task of one's own and after a failure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from isostep import Config, fit
from isostep.errors import DataError
from isostep.tasks import Classification


class Halved(Classification):
    """Half the loss: the first row shows that it is used, divisor and all."""

    def item_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().item_losses(logits, labels) / 2


def config(folder: str, name: str, *more: str) -> Config:
    return Config.load(overrides=[
        "--run.name", name, "--run.root", folder, "--data.path", "builtin:sms", "--model.path", "builtin:tiny",
        "--model.dropout", "0", "--data.max_train_examples", "40", "--batch.size", "16", "--train.max_steps", "3",
        "--track.wandb", "disabled", "--track.log_every", "1", *more])  # fmt: skip


def first_loss(folder: str, name: str) -> float:
    with open(Path(folder, name, "metrics.jsonl")) as rows:
        return float(json.loads(rows.readline())["train/loss"])


def main(folder: str) -> None:
    history = fit(config(folder, "plain"))
    assert history["examples_seen"] == 40
    try:
        missing = ("--data.path", "null", "--data.train", "none.csv", "--data.text", "a", "--data.label", "b")
        fit(config(folder, "no data", *missing))
    except DataError as error:
        assert "none.csv" in str(error)
    else:
        raise AssertionError("a missing file is an error")
    fit(config(folder, "halved"), task=Halved())
    dist.barrier()  # the program's own collectives still work
    assert abs(first_loss(folder, "halved") / first_loss(folder, "plain") - 0.5) < 1e-5
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])

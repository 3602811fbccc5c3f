"""On every rank: an evaluation against the rows taken one by one, for sets that do and do not divide over the ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from small import Rows, bert

from isostep.config import Config
from isostep.data.plan import fixed_subset
from isostep.tasks import Classification
from isostep.train.evaluate import Evaluator
from isostep.train.ranks import start
from isostep.train.stop import Stop

CASES = [(23, None), (23, 17), (2, None), (1, None)]  # rows, eval.max_examples
BUDGETS = (1, 64, 100_000)


def main() -> None:
    config = Config.load(overrides=["--run.name", "evaluation", "--data.path", "builtin:sms", "--model.path",
                                    "builtin:tiny"])  # fmt: skip
    accelerator, ranks = start(config)
    stop = Stop(Path("nowhere"), ranks.rank, ranks.new_group())
    task = Classification()
    task.bind(SimpleNamespace(pad_token_id=0), SimpleNamespace(values=[0, 1, 2]))  # type: ignore[arg-type]
    net = bert().eval()
    for n, most in CASES:
        rows = Rows(n)
        chosen = fixed_subset(n, most, seed=1)
        loss, predictions, targets = plain(net, rows, chosen.tolist())
        for budget in BUDGETS:
            evaluator = Evaluator(accelerator, ranks, task, rows, rows.lengths, chosen, budget, stop)
            for _ in range(2):
                got = evaluator(net)
                assert abs(got["loss"] - loss) < 1e-12 * loss, f"{n} rows, budget {budget}: {got['loss']} for {loss}"
                assert got["accuracy"] == accuracy_score(targets, predictions)
                assert got["f1"] == f1_score(targets, predictions, labels=[0, 1, 2], average="macro", zero_division=0)
                assert got["mcc"] == matthews_corrcoef(targets, predictions)
                assert len(set(ranks.gather(tuple(got.items())))) == 1, "all ranks hold the same values"
    stop.drain()
    accelerator.end_training()


@torch.no_grad()
def plain(net: torch.nn.Module, rows: Rows, ids: list[int]) -> tuple[float, list[int], list[int]]:
    losses, predictions, targets = [], [], []
    for row in rows.__getitems__(ids):
        logits = net(input_ids=torch.tensor([row["input_ids"]])).logits
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor([row["labels"]])).item())
        predictions.append(int(logits.argmax()))
        targets.append(int(row["labels"]))
    return sum(losses) / len(losses), predictions, targets


if __name__ == "__main__":
    sys.exit(main())

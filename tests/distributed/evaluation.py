"""On every rank: an evaluation against the rows taken one by one, for sets that do and do not divide over the ranks.

For each kind of task, also the one whose rows are several items.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from small import KINDS, Rows, bert, make_task, plain

from isostep.config import Config
from isostep.data.plan import fixed_subset
from isostep.train.evaluate import Evaluator
from isostep.train.ranks import start
from isostep.train.stop import Stop

CASES = [(23, None), (23, 17), (2, None), (1, None)]  # rows, eval.max_examples
BUDGETS = (1, 64, 100_000)
Values = dict[str, float]


def main() -> None:
    config = Config.load(overrides=["--run.name", "evaluation", "--data.path", "builtin:sms", "--model.path",
                                    "builtin:tiny"])  # fmt: skip
    accelerator, ranks = start(config)
    stop = Stop(Path("nowhere"), ranks.rank, ranks.new_group())
    for kind in KINDS:
        task, net = make_task(kind), bert(kind).eval()
        for n, most in CASES:
            rows = Rows(n, kind)
            chosen = fixed_subset(n, most, seed=1)
            loss, predictions, targets = one_by_one(kind, net, rows, chosen.tolist())
            seen: list[tuple[Any, Any]] = []

            def metrics(p: Any, t: Any, task: Any = task, seen: list[tuple[Any, Any]] = seen) -> Values:
                seen.append((p, t))
                return task.metrics(p, t)

            for budget in BUDGETS:
                evaluator = Evaluator(accelerator, ranks, task, rows, rows.lengths, chosen, budget, stop, metrics)
                for _ in range(2):
                    got = evaluator(net)
                    where = f"{kind}, {n} rows, budget {budget}"
                    assert abs(got["loss"] - loss) < 1e-12 * loss, f"{where}: {got['loss']} for {loss}"
                    CHECKS[kind](got, predictions, targets)
                    assert len(set(ranks.gather(tuple(got.items())))) == 1, "all ranks hold the same values"
            assert len(seen) == (2 * len(BUDGETS) if ranks.is_main else 0), "metrics are computed once"
            for p, t in seen:
                assert [np.asarray(row).tolist() for row in t] == in_fp32(targets), "each item once, in the rows' order"
                assert len(p) == len(targets)
    stop.drain()
    accelerator.end_training()


@torch.no_grad()
def one_by_one(kind: str, net: torch.nn.Module, rows: Rows, ids: list[int]) -> tuple[float, list[Any], list[Any]]:
    """The mean of the item losses; predictions and targets, of tags as a list a row."""
    found = [plain(kind, net, row) for row in rows.__getitems__(ids)]
    losses = [loss.item() for row in found for loss, _, _ in row]
    predictions, targets = ([[item[part] for item in row] for row in found] for part in (1, 2))
    if kind != "tags":
        predictions, targets = ([row[0] for row in side] for side in (predictions, targets))
    return sum(losses) / len(losses), predictions, targets


def in_fp32(targets: list[Any]) -> list[Any]:
    return [np.asarray(target, np.float32).tolist() for target in targets]


def classification(got: Values, predictions: list[int], targets: list[int]) -> None:
    assert got["accuracy"] == accuracy_score(targets, predictions)
    assert got["f1"] == f1_score(targets, predictions, labels=[0, 1, 2], average="macro", zero_division=0)
    assert got["mcc"] == matthews_corrcoef(targets, predictions)


def regression(got: Values, predictions: list[float], targets: list[float]) -> None:
    p, t = np.array(predictions), np.array(targets)

    def correlation(a: Any, b: Any) -> float:
        a, b = a - a.mean(), b - b.mean()
        return (a @ b) / math.sqrt((a @ a) * (b @ b)) if len(a) > 1 else 0.0

    wanted = {
        "mse": np.mean((p - t) ** 2),
        "rmse": math.sqrt(np.mean((p - t) ** 2)),
        "mae": np.mean(np.abs(p - t)),
        "r2": 1 - np.sum((p - t) ** 2) / np.sum((t - t.mean()) ** 2) if len(t) > 1 else 0.0,
        "pearson": correlation(p, t),
        "spearman": correlation(rankdata(p), rankdata(t)),
    }
    assert set(got) == {"loss", *wanted}
    for name, value in wanted.items():
        assert math.isclose(got[name], value, rel_tol=1e-9, abs_tol=1e-12), f"{name}: {got[name]} for {value}"
    assert math.isclose(got["loss"], got["mse"], rel_tol=1e-12)


def multi_label(got: Values, predictions: list[list[bool]], targets: list[list[int]]) -> None:
    p, t = np.array(predictions).astype(int), np.array(targets)
    assert got["accuracy"] == np.mean([a == b for a, b in zip(p.tolist(), t.tolist(), strict=True)])
    assert got["f1_micro"] == f1_score(t.ravel(), p.ravel(), zero_division=0), "of all decisions together"
    by_class = [f1_score(t[:, c], p[:, c], zero_division=0) for c in range(t.shape[1])]
    assert math.isclose(got["f1_macro"], sum(by_class) / len(by_class), rel_tol=1e-12)


def tags(got: Values, predictions: list[list[int]], targets: list[list[int]]) -> None:
    right = [p == t for ps, ts in zip(predictions, targets, strict=True) for p, t in zip(ps, ts, strict=True)]
    assert got["accuracy"] == sum(right) / len(right) and got["rows"] == len(targets)


CHECKS: dict[str, Callable[[Values, list[Any], list[Any]], None]] = {
    "classification": classification,
    "regression": regression,
    "multi_label": multi_label,
    "tags": tags,
}

if __name__ == "__main__":
    sys.exit(main())

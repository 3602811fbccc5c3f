"""Regression and several labels a row, seed by seed, on made rows: isostep on two ranks, Trainer on one process.

    python benchmarks/kinds.py --seeds 1 2 3

MiniLM with a new head, 600 training and 200 validation rows of benchmarks/made.py, four epochs, batch 16, learning rate
1e-4; scores after the last epoch. Two markdown tables go to stdout.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from made import TOPICS, stays, tickets, write
from quality import minilm
from runs import run_isostep, run_peer, series
from tables import quality_table

EPOCHS, BATCH, LR, TRAIN, VALIDATION = 4, 16, 1e-4, 600, 200
KINDS: dict[str, dict[str, Any]] = {
    "regression": {"rows": stays, "label": ["mark"], "scores": ("pearson", "spearman")},
    "multi_label": {"rows": tickets, "label": list(TOPICS), "scores": ("f1_micro", "f1_macro")},
}


def ours(kind: str, files: tuple[Path, Path], seed: int, work: Path) -> tuple[float, float]:
    label = KINDS[kind]["label"]
    config = {
        "run": {"name": f"{kind}-{seed}", "root": str(work / "runs"), "seed": seed},
        "task": {"kind": "classification", "multi_label": True} if kind == "multi_label" else {"kind": kind},
        "data": {
            "train": str(files[0]), "validation": str(files[1]), "text": ["text"],
            "label": label if len(label) > 1 else label[0],
        },
        "model": {"path": minilm()},
        "batch": {"size": BATCH},
        "optim": {"lr": LR},
        "train": {"epochs": EPOCHS},
        "checkpoint": {"keep": 1},
        "track": {"wandb": "disabled"},
    }  # fmt: skip
    values = series(run_isostep(config, 2, work, threads=1))
    first, second = (values[f"eval/{score}"] for score in KINDS[kind]["scores"])
    return first[max(first)], second[max(second)]


def theirs(kind: str, files: tuple[Path, Path], seed: int, work: Path) -> tuple[float, float]:
    arguments = {
        "train": str(files[0]), "validation": str(files[1]), "text": ["text"], "label": KINDS[kind]["label"],
        "kind": kind, "model": minilm(), "epochs": EPOCHS, "batch": BATCH, "lr": LR, "seed": seed,
        "out": str(work / f"{kind}-trainer-{seed}.json"),
    }  # fmt: skip
    final = run_peer(arguments, 1, work, threads=1)["final"]
    first, second = KINDS[kind]["scores"]
    return final[first], final[second]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    seeds = parser.parse_args().seeds
    with tempfile.TemporaryDirectory(prefix="kinds-") as folder:
        work = Path(folder)
        for kind, facts in KINDS.items():
            files = (
                write(facts["rows"](TRAIN, 1), work / f"{kind}-train.jsonl"),
                write(facts["rows"](VALIDATION, 2), work / f"{kind}-validation.jsonl"),
            )
            got: tuple[dict[int, tuple[float, float]], dict[int, tuple[float, float]]] = ({}, {})
            for seed in seeds:
                got[0][seed], got[1][seed] = ours(kind, files, seed, work), theirs(kind, files, seed, work)
                print(
                    f"{kind} seed {seed}: isostep {got[0][seed]}, Trainer {got[1][seed]}", file=sys.stderr, flush=True
                )
            print(f"\n{kind}\n")
            print(quality_table(*got, ("isostep, 2 ranks", "Trainer, 1 process"), facts["scores"]))


if __name__ == "__main__":
    main()

"""The promise made visible in under three minutes on two cores: one configuration on 1, 2 and 4 ranks.

    python benchmarks/prove.py

isostep trains the quickstart's model on the quickstart's data (fp32, no dropout, a short last window in each epoch) on
1, 2 and 4 gloo ranks with two token budgets each; transformers' Trainer makes its first step from the same weights with
the same 32 examples, cut in five ways. Two markdown tables go to stdout. Exit code 1 when one of isostep's runs differs
from the first by more than 1e-5 relative.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from runs import run_isostep, run_peer, series
from tables import difference_table, ratio_table

PROMISE = 1e-5  # relative
BATCH = 32
TRAIN_ROWS, VALIDATION_ROWS = (176, 97)  # 5.5 windows an epoch, and a number that divides by no world size
MAX_STEPS, EVAL_EVERY = 12, 6  # two epochs
SEED = 42
KEYS = ("train/loss", "train/grad_norm", "eval/loss", "eval/accuracy")
RUNS = [(ranks, budget) for ranks in (1, 2, 4) for budget in (4096, 128)]  # tokens: one part a rank, and several
CUTS = [(1, 32, 1), (1, 8, 4), (2, 16, 1), (2, 8, 2), (4, 8, 1)]  # ranks, per-device batch, accumulation


def write_data(work: Path) -> dict[str, Any]:
    """The first rows of builtin:sms as two JSON-lines files; isostep's data section."""
    from isostep.data.builtin import sms

    parts = {"train": sms("train")[:TRAIN_ROWS], "validation": sms("validation")[:VALIDATION_ROWS]}
    for name, rows in parts.items():
        lines = [json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in rows]
        (work / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {**{name: str(work / f"{name}.jsonl") for name in parts}, "text": ["text"], "label": "label"}


def config(name: str, data: dict[str, Any], model: str, work: Path, budget: int, max_steps: int) -> dict[str, Any]:
    return {
        "run": {"name": name, "root": str(work / "runs"), "seed": SEED},
        "data": data,
        "model": {"path": model, "dropout": 0.0},
        "batch": {"size": BATCH, "tokens_per_device": budget},
        "train": {"max_steps": max_steps, "precision": "no"},
        "eval": {"every": EVAL_EVERY},
        "checkpoint": {"every": 1000},
        "track": {"wandb": "disabled", "log_every": 1},
    }


def isostep_series(run: tuple[int, int], data: dict[str, Any], model: str, work: Path) -> dict[str, dict[int, float]]:
    ranks, budget = run
    folder = run_isostep(config(f"ranks{ranks}-tokens{budget}", data, model, work, budget, MAX_STEPS), ranks, work)
    return series(folder)


def peer_first_step(cut: tuple[int, int, int], data: dict[str, Any], model: str, work: Path) -> tuple[float, float]:
    """Loss and gradient norm that Trainer logs for its first optimizer step: the same 32 rows for every cut."""
    ranks, batch, accumulation = cut
    arguments = {
        "train": data["train"],
        "text": data["text"],
        "label": data["label"],
        "model": model,
        "max_steps": 1,
        "batch": batch,
        "accumulation": accumulation,
        "seed": SEED,
        "dropout": 0.0,
        "log_every": 1,
        "out": work / f"trainer-{ranks}-{batch}-{accumulation}.json",
    }
    step = run_peer(arguments, ranks, work)["steps"][0]
    return step["loss"], step["grad_norm"]


def in_turn(measure: Any, cuts: list[Any], *rest: Any) -> list[Any]:
    """measure(cut, *rest) for each cut, those on one rank two at a time (two cores), the others one after the other."""
    with ThreadPoolExecutor(2) as pool:
        single = {cut: pool.submit(measure, cut, *rest) for cut in cuts if cut[0] == 1}
        done = {cut: future.result() for cut, future in single.items()}
    return [done[cut] if cut in done else measure(cut, *rest) for cut in cuts]


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="prove-") as folder:
        work = Path(folder)
        data = write_data(work)
        # One step of isostep exports builtin:tiny with its head and tokenizer: both trainers start from these weights.
        start = run_isostep(config("start", data, "builtin:tiny", work, 4096, 1), 1, work)
        model = str(start / "final")
        ours = dict(zip(RUNS, in_turn(isostep_series, RUNS, data, model, work), strict=True))
        theirs = in_turn(peer_first_step, CUTS, data, model, work)
    table, largest = difference_table(ours, KEYS)
    kept = largest <= PROMISE
    print(f"isostep, {MAX_STEPS} steps of {BATCH} examples: largest relative difference to the first run\n\n{table}\n")
    print(f"transformers' Trainer, the same weights, its first {BATCH} examples\n\n{ratio_table(CUTS, theirs)}\n")
    verdict = "kept" if kept else "BROKEN"
    print(f"Promise of {PROMISE:.0e}: {verdict} (largest {largest:.1e}). {time.monotonic() - began:.0f} s")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

"""`isostep plan`: what would run, from the data alone; fills the token cache, so that a CPU node can do it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isostep.config.commandline import parse

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.data.plan import Plan


def run(argv: Sequence[str]) -> int:
    """Print the plan of a configuration for --world-size ranks (default 1); reads no model weights."""
    own = argparse.ArgumentParser(prog="isostep plan", add_help=False, allow_abbrev=False)
    own.add_argument("--world-size", type=int, default=1, metavar="N")
    options, rest = own.parse_known_args(list(argv))
    if "-h" in rest or "--help" in rest:
        print("isostep plan [--world-size N]: shows steps, windows, parts a rank and padding on N ranks (1).\n"
              "Further arguments are those of train.py:\n")  # fmt: skip
    config = parse(rest, prog="isostep plan")
    if options.world_size < 1:
        own.error(f"--world-size must be at least 1, not {options.world_size}")
    print("\n".join(describe(config, options.world_size)))
    return 0


def describe(config: Config, world_size: int) -> list[str]:
    """The lines that `isostep plan` prints for `world_size` ranks."""
    import torch

    from isostep.data.plan import Plan
    from isostep.data.tokens import lengths
    from isostep.tasks import make_task
    from isostep.train.parts import Parts
    from isostep.train.prepare import make_data, token_budget

    task = make_task(config)
    data = make_data(config, Parts(task))
    budget = token_budget(config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    rows = lengths(data.train)
    plan = Plan(rows, config.batch.size, world_size, budget, config.run.seed, task.items(data.train))
    total = config.train.max_steps or config.train.epochs * plan.windows_per_epoch
    cut = data.summary["files"]["train"]["truncated"]
    last = len(rows) - (plan.windows_per_epoch - 1) * config.batch.size
    sets = " + ".join(f"{len(part):,}" for part in data.validation.values())
    return [
        f"rows         {len(rows):,} training, {sets} validation",
        f"tokens       {int(rows.sum()):,}; {rows.min()} to {rows.max()} a row, mean {rows.mean():.1f}; {cut:,} cut",
        *([f"labels       {', '.join(data.labels.names)}"] if data.labels is not None else []),
        f"steps        {total:,}: {plan.windows_per_epoch:,} windows an epoch of {config.batch.size} examples"
        + (f", the last of {last}" if last != config.batch.size else ""),
        *_cut_lines(plan, budget, world_size),
        f"token cache  {data.summary['cache']}" + (" (was there)" if data.summary["reused"] else " (made)"),
    ]


def _cut_lines(plan: Plan, budget: int, world_size: int) -> list[str]:
    """How the first epoch is cut: passes, padding and balance."""
    windows = list(plan.windows(0))
    passes = [len(window.passes) for window in windows]
    padding = sum(w.padded_tokens for w in windows) / sum(w.tokens for w in windows)
    return [
        f"parts        {min(passes)} to {max(passes)} a rank and window, on {world_size} rank(s) of {budget:,} tokens",
        f"padding      x{padding:.3f} (1 is none)",
    ]

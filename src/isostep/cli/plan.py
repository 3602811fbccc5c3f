"""`isostep plan`: what would run, from the data alone; fills the token cache, so that a CPU node can do it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from isostep.config.commandline import parse
from isostep.errors import ConfigError

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.data.plan import Plan
    from isostep.data.tokens import TokenizedData
    from isostep.tasks import Task

HELP = """isostep plan [--world-size N] [--show N]: what would run.

  --world-size N  the steps, windows, parts a rank and padding on N ranks (1)
  --show N        also the first N training rows as the model gets them: pieces, mask, labels, what truncation cut

Further arguments are those of train.py:
"""


class Planned(NamedTuple):
    """What follows from a configuration before any model is loaded."""

    config: Config
    task: Task
    data: TokenizedData
    plan: Plan


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"isostep plan: {message}")


def run(argv: Sequence[str]) -> int:
    """Print the plan of a configuration for --world-size ranks (default 1); reads no model weights.

    Of several processes of a launcher the first one prints. Raises ConfigError and DataError.
    """
    first = os.environ.get("RANK", "0") == "0"
    own = _Parser(prog="isostep plan", add_help=False, allow_abbrev=False)
    own.add_argument("--world-size", type=_positive, default=1)
    own.add_argument("--world_size", type=_positive, default=argparse.SUPPRESS)
    own.add_argument("--show", type=_positive, default=0)
    options, rest = own.parse_known_args(list(argv))
    if first and ("-h" in rest or "--help" in rest):
        print(HELP)
    config = parse(rest, prog="isostep plan")
    planned = make(config, options.world_size)
    if first:
        print("\n".join(describe(planned)))
        if options.show:
            from isostep.cli.show import show

            for line in show(planned, options.show):
                print(line)
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on (got {text})")
    return int(text)


def make(config: Config, world_size: int) -> Planned:
    """The tokenised data of a configuration and its plan for `world_size` ranks."""
    import torch

    from isostep.data.plan import Plan
    from isostep.data.tokens import lengths
    from isostep.tasks import make_task
    from isostep.train.parts import Parts
    from isostep.train.prepare import make_data, token_budget

    task = make_task(config)
    data = make_data(config, Parts(task))
    budget = token_budget(config, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    items = task.items(data.train)
    plan = Plan(lengths(data.train), config.batch.size, world_size, budget, config.run.seed, items)
    return Planned(config, task, data, plan)


def describe(planned: Planned) -> list[str]:
    """The lines that `isostep plan` prints."""
    config, _, data, plan = planned
    rows = plan.lengths
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
        *_cut_lines(plan),
        f"token cache  {data.summary['cache']}" + (" (was there)" if data.summary["reused"] else " (made)"),
    ]


def _cut_lines(plan: Plan) -> list[str]:
    """How the first epoch is cut: passes, padding and balance."""
    windows = list(plan.windows(0))
    passes = [len(window.passes) for window in windows]
    padding = sum(w.padded_tokens for w in windows) / sum(w.tokens for w in windows)
    return [
        f"parts        {min(passes)} to {max(passes)} a rank and window, on {plan.world_size} rank(s) of "
        f"{plan.budget:,} tokens",
        f"padding      x{padding:.3f} (1 is none)",
    ]

"""`isostep train`, and train.py: one configuration, one run."""

from __future__ import annotations

from collections.abc import Sequence

from isostep.config.commandline import parse


def run(argv: Sequence[str]) -> int:
    """Train what the arguments say; 0 when the run has completed. Errors carry their exit code."""
    config = parse(argv, prog="train.py")
    from isostep.train.fit import fit  # after the arguments: it imports torch

    fit(config)
    return 0

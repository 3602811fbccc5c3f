"""`isostep train`, and train.py: one configuration, one run."""

from __future__ import annotations

from collections.abc import Sequence

from isostep import early
from isostep.config.commandline import parse
from isostep.errors import IsostepError


def run(argv: Sequence[str]) -> int:
    """Train what the arguments say; 0 when the run has completed. Errors carry their exit code."""
    config = parse(argv, prog="train.py")
    early.listen()
    from isostep.train.fit import fit  # after the arguments: it imports torch
    from isostep.train.ranks import end_process_group

    try:
        fit(config, resume=True)
    except (
        IsostepError
    ):  # on all ranks; after an error of one alone the group is best left: the launcher ends the others
        end_process_group()
        raise
    end_process_group()
    return 0

"""What can go wrong by a user's hand: each error carries the exit code that `train.py` ends with.

The text of such an error is one or two plain lines: what, where, how to mend it. It is printed by one rank, without a
traceback; anything that is not an IsostepError is a defect of ours and keeps its traceback (exit code 1).
"""

from __future__ import annotations

COMPLETED = 0


class IsostepError(Exception):
    """Base of all errors that a user can mend; `exit_code` is the process's."""

    exit_code = 1


class ConfigError(IsostepError, ValueError):
    """Configuration or usage is wrong, or a model can't be had."""

    exit_code = 2


class DataError(IsostepError, ValueError):
    """The data can't be trained on: a missing file or column, a broken line, an unusable label."""

    exit_code = 3


class DivergedError(IsostepError, ArithmeticError):
    """Loss or gradient stayed non-finite beyond train.nonfinite_limit."""

    exit_code = 4


class FolderInUseError(IsostepError, RuntimeError):
    """Another process writes to this run folder."""

    exit_code = 5


class CheckpointError(IsostepError, ValueError):
    """A checkpoint asked for by name can't be used."""

    exit_code = 6


class SaveError(IsostepError, OSError):
    """A checkpoint could not be written; the one before is intact."""


class PreemptedError(IsostepError):
    """Asked to stop: everything trained is saved, and the same command goes on from there."""

    exit_code = 75

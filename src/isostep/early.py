"""Signals that come before there is a run to stop: while torch is imported and the ranks meet, for seconds.

Their default would end the process, and the run as if it had failed. They are remembered instead, and `Stop` takes them
over.
"""

from __future__ import annotations

import signal
from types import FrameType

_heard: list[int] = []


def listen() -> None:
    """From now on SIGTERM and SIGUSR1 are remembered; for the main thread of a program that ends with its run."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, _remember)


def _remember(number: int, frame: FrameType | None) -> None:
    _heard.append(number)


def heard() -> list[int]:
    """The signals that came since the last call."""
    taken, _heard[:] = list(_heard), []
    return taken

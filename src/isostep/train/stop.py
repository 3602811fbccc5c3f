"""Stopping on request: a signal to any rank, or a STOP file, makes all ranks stop at the same step.

A handler only sets a flag. The flags are combined by a reduction on a CPU group that is started at one step and read at
the next, so that no step waits for it. Where steps are short not every one starts a reduction: with its flag each rank
sends how many calls it would leave out, and the largest number holds for all, so that all go on asking alike.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from isostep import early
from isostep.errors import PreemptedError
from isostep.track.folder import STOP_FILE

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
FILE_INTERVAL = 0.5  # seconds between looks for the STOP file: it may lie on a network file system
ABORT_WITHIN = 5.0  # seconds in which a second Ctrl-C aborts
ASK_EVERY = 0.25  # seconds between two reductions where steps are shorter; grace periods are 20 s and more
MOST_CALLS = 16  # between two reductions, however short the steps: some may be longer


class Stop:
    """The wish to stop, shared by all ranks.

    Args:
        folder: the run folder, in which rank 0 looks for the STOP file.
        rank: this process' rank.
        group: a CPU process group for this alone; None for a single process.
    """

    def __init__(self, folder: Path, rank: int, group: dist.ProcessGroup | None) -> None:
        self.file = folder / STOP_FILE if rank == 0 else None
        self.group = group
        self.reason: str | None = None
        self._asked = torch.zeros(2, dtype=torch.int32)  # somebody wants to stop; calls until the next reduction
        self._calls, self._every, self._since = 0, 1, time.monotonic()
        self._same_pace = True  # since the reduction that is under way was started
        self._work: dist.Work | None = None
        self._looked = 0.0
        self._interrupted: float | None = None
        self._preparing = False

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Handle the signals within (in the main thread: Python allows no other); those of before come back after."""
        main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._handle) for number in SIGNALS} if main else {}
        for number in early.heard():
            self._handle(number, None)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self.drain()

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Within, nothing has been trained yet: a signal raises PreemptedError at once."""
        if self.reason is not None:
            raise PreemptedError(f"stopped by {self.reason} before the first step")
        self._preparing = True
        try:
            yield
        finally:
            self._preparing = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT:
            if self._interrupted is not None and now - self._interrupted < ABORT_WITHIN:
                sys.stderr.write("aborted: the newest checkpoint is the one before\n")
                os._exit(128 + signal.SIGINT)
            self._interrupted = now
        self.reason = self.reason or signal.Signals(number).name
        if self._preparing:
            self._preparing = False
            raise PreemptedError(f"stopped by {self.reason} before the first step")

    def poll(self) -> bool:
        """True on all ranks at the same call once any of them wants to stop; called by all ranks alike.

        With several ranks that is one call after the wish was first shared.
        """
        self._look_for_file()
        if self.group is None:
            return self.reason is not None
        agreed = False
        if self._work is not None:
            self._work.wait()  # started a whole step ago
            self._work = None
            stop, calls = self._asked.tolist()
            agreed, self._every = bool(stop), calls if self._same_pace else 1
        self._calls += 1
        if self._calls >= self._every:
            self._ask()
        return agreed

    def _ask(self) -> None:
        now = time.monotonic()
        seconds = max((now - self._since) / self._calls, 1e-6)
        self._calls, self._since, self._same_pace = 0, now, True
        calls = min(max(int(ASK_EVERY / seconds), 1), MOST_CALLS)
        self._asked = torch.tensor([self.reason is not None, calls], dtype=torch.int32)
        self._work = dist.all_reduce(self._asked, dist.ReduceOp.MAX, group=self.group, async_op=True)

    def new_pace(self) -> None:
        """The calls that follow come at another pace (an evaluation begins or ends); called by all ranks alike."""
        self._calls, self._every, self._since, self._same_pace = 0, 1, time.monotonic(), False

    def _look_for_file(self) -> None:
        if self.file is None or self.reason is not None:
            return
        now = time.monotonic()
        if now - self._looked >= FILE_INTERVAL:
            self._looked = now
            if self.file.exists():
                self.reason = f"the file {self.file}"

    def drain(self) -> None:
        """Wait for the reduction that is under way, so that the group can be taken down."""
        if self._work is not None and sys.exc_info()[0] is None:
            self._work.wait()
        self._work = None

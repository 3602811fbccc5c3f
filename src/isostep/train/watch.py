"""Who hangs, and where: each rank keeps its phase and a heartbeat in a small file that the others can read.

When a collective runs into its timeout, those who waited can only say that somebody did not come. The file says who.
"""

from __future__ import annotations

import faulthandler
import mmap
import signal
import struct
import threading
import time
from pathlib import Path

SLOT = struct.Struct("<d24sq")  # heartbeat (seconds since the epoch), phase, step
BEAT = 1.0  # seconds
SILENT = 5.0  # seconds without a heartbeat after which a rank counts as stopped


class Watch:
    """This rank's slot in the run folder's .phases; writing it is a copy in memory, without a system call.

    SIGUSR2 makes a rank write its stacks to logs/rank-N.stacks and go on.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        with open(folder / ".phases", "a+b") as file:  # not in logs/, where all is text
            file.truncate(SLOT.size * world_size)
            self._map = mmap.mmap(file.fileno(), SLOT.size * world_size)
        self._stacks = open(logs / f"rank-{rank}.stacks", "a")  # noqa: SIM115 - written to by a signal handler
        faulthandler.register(signal.SIGUSR2, file=self._stacks)
        self._phase, self._step = b"start", 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="isostep-watch", daemon=True)
        self._write()
        self._thread.start()

    def enter(self, phase: str, step: int) -> None:
        """Note that this rank begins `phase` (data, step, evaluation, save, export, failure) at `step`."""
        self._phase, self._step = phase.encode(), step
        self._write()

    def _write(self) -> None:
        SLOT.pack_into(self._map, SLOT.size * self.rank, time.time(), self._phase, self._step)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            self._write()

    def report(self) -> str:
        """One line: the phase of every rank, and which of them give no sign of life."""
        now, parts = time.time(), []
        for rank in range(self.world_size):
            beat, phase, step = SLOT.unpack_from(self._map, SLOT.size * rank)
            silent = f", silent for {now - beat:.0f} s" if now - beat > SILENT else ""
            parts.append(f"rank {rank} in {phase.rstrip(bytes(1)).decode()} (step {step}{silent})")
        return "; ".join(parts)

    def failed(self) -> list[int]:
        """The ranks that have noted a failure of their own, as far as this node sees it."""
        phases = [SLOT.unpack_from(self._map, SLOT.size * rank)[1] for rank in range(self.world_size)]
        return [rank for rank, phase in enumerate(phases) if phase.rstrip(bytes(1)) == b"failure"]

    def dump_stacks(self) -> None:
        """Write the stacks of all threads of this rank to logs/rank-N.stacks."""
        faulthandler.dump_traceback(self._stacks)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        faulthandler.unregister(signal.SIGUSR2)
        self._stacks.close()
        self._map.close()

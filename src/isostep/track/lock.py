"""One writer to a run folder: a lock that names its holder and is taken over from a dead one."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from isostep.errors import FolderInUseError

LOCK_FILE = ".lock"
HEARTBEAT = 10.0  # seconds
SILENT = 90.0  # seconds without a heartbeat after which a holder on another host counts as dead


class FolderLock:
    """Held by rank 0 from before the first write to a run folder to after the last.

    The holder is dead if its process is gone (same host), if it is the same SLURM job before a requeue, or if it has
    been silent for 90 seconds (another host, which may have been cut off).
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the lock. Raises FolderInUseError (exit code 5), naming the holder, if that one lives."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_name(f"{LOCK_FILE}.guard"), "w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # of two that find a dead holder, one takes over first
            holder = self._holder()
            if holder is not None and not self._is_dead(holder):
                raise FolderInUseError(
                    f"{self.path.parent} is in use by process {holder['pid']} on {holder['host']}"
                    + (f", SLURM job {holder['job']}" if holder["job"] else "")
                    + "; wait for it, or choose another --run.name"
                )
            partial = self.path.with_name(f"{LOCK_FILE}.tmp")
            partial.write_text(json.dumps(_identity()) + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        self._thread = threading.Thread(target=self._beat, name="isostep-lock", daemon=True)
        self._thread.start()

    def _holder(self) -> dict[str, Any] | None:
        try:
            holder: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return holder

    def _is_dead(self, holder: dict[str, Any]) -> bool:
        own = _identity()
        if holder["host"] == own["host"]:
            try:
                return abs(psutil.Process(holder["pid"]).create_time() - holder["started"]) > 1.0
            except psutil.NoSuchProcess:
                return True
        if own["job"] is not None and holder["job"] == own["job"] and own["requeues"] > holder["requeues"]:
            return True
        return time.time() - self.path.stat().st_mtime > SILENT

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT):
            try:
                os.utime(self.path)
            except OSError:
                return  # the folder is gone: there is nothing left to guard

    def release(self) -> None:
        """Give the lock back; nothing if it is not held."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self.path.unlink(missing_ok=True)


def _identity() -> dict[str, Any]:
    """This process, so that another one can tell whether it still lives."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "job": os.environ.get("SLURM_JOB_ID"),
        "requeues": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
    }

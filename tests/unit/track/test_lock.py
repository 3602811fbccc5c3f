"""One writer: a living holder is named, a dead one replaced."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from isostep.errors import FolderInUseError
from isostep.track import lock as module
from isostep.track.lock import FolderLock


def holder(folder, **changes):
    """A lock file as another process would have written it."""
    facts = {"host": socket.gethostname(), "pid": os.getpid(), "started": 0.0, "job": None, "requeues": 0, **changes}
    (folder / ".lock").write_text(json.dumps(facts))


def test_a_second_writer_is_refused_and_told_who_holds_the_folder(tmp_path):
    first = FolderLock(tmp_path)
    first.acquire()
    with pytest.raises(FolderInUseError, match=rf"process {os.getpid()} on {socket.gethostname()}") as refused:
        FolderLock(tmp_path).acquire()
    assert refused.value.exit_code == 5
    first.release()
    second = FolderLock(tmp_path)
    second.acquire()
    second.release()
    assert not (tmp_path / ".lock").exists()


def test_a_dead_process_is_replaced_even_if_its_number_is_in_use_again(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for changes in ({"pid": gone.pid}, {"pid": os.getpid(), "started": 1.0}):
        holder(tmp_path, **changes)
        lock = FolderLock(tmp_path)
        lock.acquire()
        lock.release()


def test_a_holder_on_another_host_is_dead_when_silent_or_when_its_job_was_requeued(tmp_path, monkeypatch):
    holder(tmp_path, host="elsewhere", pid=1, job="77")
    with pytest.raises(FolderInUseError, match="process 1 on elsewhere, SLURM job 77"):
        FolderLock(tmp_path).acquire()
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    with pytest.raises(FolderInUseError):  # the same job, but not started again: another part of it
        FolderLock(tmp_path).acquire()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    holder(tmp_path, host="elsewhere", pid=1, job="77")
    silent = time.time() - module.SILENT - 1
    os.utime(tmp_path / ".lock", (silent, silent))
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_holder_shows_that_it_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT", 0.02)
    lock = FolderLock(tmp_path)
    lock.acquire()
    os.utime(tmp_path / ".lock", (1.0, 1.0))
    until = time.monotonic() + 5
    while (tmp_path / ".lock").stat().st_mtime < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert (tmp_path / ".lock").stat().st_mtime > 2
    lock.release()

"""Folders of tokenised data under a fingerprint, made once by whichever process comes first and then only read.

    <root>/tokens/<fingerprint>/        train.arrow, validation.arrow, test.arrow: Arrow streams; meta.json written last

A folder appears by a rename when it is complete and on disk; one that is damaged nevertheless is made anew.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from isostep.durable import sync
from isostep.errors import ConfigError

log = logging.getLogger("isostep")

META = "meta.json"
_STALE_SECONDS = 24 * 3600

Meta = dict[str, Any]


def cache_root() -> Path:
    """Where isostep keeps what can be made again: $ISOSTEP_CACHE, $XDG_CACHE_HOME/isostep or ~/.cache/isostep."""
    if own := os.environ.get("ISOSTEP_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared).expanduser() / "isostep"
    return Path.home() / ".cache" / "isostep"


def obtain(fingerprint: str, write: Callable[[Path], Meta]) -> tuple[Path, Meta, bool]:
    """The folder of this fingerprint, its meta.json, and whether it was there already.

    `write` fills an empty folder and returns what meta.json is to hold. It is called by one process at a time; the
    others wait for it. Raises ConfigError where the cache can't be written to, and whatever `write` raises.
    """
    folder = cache_root() / "tokens" / fingerprint
    meta = _complete(folder)
    if meta is not None:
        return folder, meta, True
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f".{fingerprint}.lock")):
            meta = _complete(folder)
            if meta is not None:
                return folder, meta, True
            return folder, _make(folder, write), False
    except OSError as error:
        raise ConfigError(
            f"the token cache {folder.parent} can't be written: {error.strerror or error}; "
            "set ISOSTEP_CACHE to a folder with room"
        ) from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        log.info("another process is tokenising the same data; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, write: Callable[[Path], Meta]) -> Meta:
    _sweep(folder)
    private = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        meta = write(private)
        meta["bytes"] = {path.name: path.stat().st_size for path in sorted(private.iterdir())}
        (private / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        for path in private.iterdir():
            sync(path)
        private.chmod(0o755)  # mkdtemp's is for its owner alone, and a cache may be shared
        sync(private)
        if folder.exists():
            log.warning("the token cache %s is damaged; it is made anew", folder)
            shutil.rmtree(folder)
        private.rename(folder)
        sync(folder.parent)
        return meta
    except OSError:
        if (theirs := _complete(folder)) is not None:  # a file system without locks: another process was first
            return theirs
        raise
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind; the age keeps a live one safe where locks don't work."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _complete(folder: Path) -> Meta | None:
    """The folder's meta.json if the folder is whole, else None."""
    try:
        meta: Meta = json.loads((folder / META).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in meta["bytes"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return meta if whole else None

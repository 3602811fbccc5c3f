"""Checkpoint folders on disk: committed whole or not at all, verified before they are used, pruned last.

A checkpoint is made in a hidden folder; when every rank's files are on the disk their sizes and hashes go into
manifest.json, the last file to be written; then the folder is renamed into its place. So a folder that can be seen has
been complete, and what has happened to it since shows in its hashes. No function here imports torch or runs pickle.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from isostep.durable import sync, write_atomically
from isostep.errors import CheckpointError

LOGGER = logging.getLogger("isostep")
MANIFEST = "manifest.json"
VERSION = 1


class Entry(NamedTuple):
    """A file of a checkpoint."""

    name: str
    size: int
    """Bytes."""
    xxh3: str
    """xxh3, 128 bits, hexadecimal."""


def step_folder(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name."""
    return int(folder.name.rpartition("-")[2])


def unfinished_folder(root: Path, step: int) -> Path:
    return root / f".step-{step:08d}.tmp"


def flush(path: Path) -> Entry:
    """Bring a file to the disk and describe it."""
    sync(path)
    return describe(path)


def describe(path: Path) -> Entry:
    """Size and hash of a file as it is on the disk."""
    digest, size = xxhash.xxh3_128(), 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
            size += len(block)
    return Entry(path.name, size, digest.hexdigest())


def commit(made: Path, target: Path, entries: Sequence[Entry], facts: dict[str, Any]) -> None:
    """Write the manifest into the folder `made` and rename it to `target`; an older `target` is replaced."""
    files = {entry.name: {"size": entry.size, "xxh3": entry.xxh3} for entry in entries}
    write_atomically(made / MANIFEST, json.dumps({"version": VERSION, **facts, "files": files}, indent=1) + "\n")
    sync(made)
    if target.exists():
        shutil.rmtree(target)  # of the same step: from a run that was taken back to an earlier checkpoint
    os.rename(made, target)
    sync(target.parent)


def verify(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose files are all there, of the right size and hash.

    Raises CheckpointError naming the first file that is not.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = {str(name): (int(facts["size"]), str(facts["xxh3"])) for name, facts in manifest["files"].items()}
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: no checkpoint, or an unfinished one: {MANIFEST} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / MANIFEST}: can't be read ({error or type(error).__name__})") from error
    if manifest.get("version") != VERSION:
        raise CheckpointError(f"{folder / MANIFEST}: version {manifest.get('version')!r}, and this one reads {VERSION}")
    for name, (size, digest) in files.items():
        path = folder / name
        if os.path.basename(name) != name or not path.is_file():
            raise CheckpointError(f"{path}: the file is missing")
        if path.stat().st_size != size:
            raise CheckpointError(f"{path}: {path.stat().st_size:,} bytes, and {size:,} were written")
        if describe(path).xxh3 != digest:
            raise CheckpointError(f"{path}: the content has changed since it was written (hash mismatch)")
    return manifest


def checkpoints(root: Path) -> list[Path]:
    """The checkpoint folders, newest first, verified or not."""
    return sorted(root.glob("step-[0-9]*"), key=step_of, reverse=True) if root.is_dir() else []


def newest_valid(root: Path) -> Path | None:
    """The newest checkpoint that verifies. Newer ones that do not are set aside, each with a warning."""
    for folder in checkpoints(root):
        try:
            verify(folder)
        except CheckpointError as error:
            LOGGER.warning("%s; the checkpoint is set aside as %s", error, set_aside(folder, "broken").name)
        else:
            return folder
    return None


def set_aside(folder: Path, why: str) -> Path:
    """Rename a checkpoint so that it is not found again, but can be looked at; one of that name goes."""
    aside = folder.with_name(f"{why}-{folder.name}")
    if aside.exists():
        shutil.rmtree(aside)
    os.rename(folder, aside)
    return aside


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints."""
    for folder in checkpoints(root)[keep:]:
        shutil.rmtree(folder)


def sweep(root: Path) -> None:
    """Delete what interrupted saves have left."""
    for folder in root.glob(".step-*.tmp") if root.is_dir() else ():
        shutil.rmtree(folder)

"""What has been answered of an input so far: a file a block, in a hidden folder beside the output.

Through it ranks share the blocks of an input among them, and a start after a kill goes on where the one before was:

    .OUTPUT.parts/lock                      held by the first rank
    .OUTPUT.parts/<key>/00000003.json       the answers of block 3, renamed to this name when they are on the disk
    .OUTPUT.parts/<start>/00000003          a rank works on block 3
    .OUTPUT.parts/<start>/failed            a rank has failed: the others are to stop

The key stands for all that the answers follow from, so another input or other weights start anew. Each start has a
folder of its own for what its ranks say to each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from isostep.durable import write_atomically
from isostep.errors import FolderInUseError
from isostep.tasks import Answers

POLL = 0.2  # seconds


class StoppedError(Exception):
    """Another rank has failed; the error to tell is its."""


class AnswerFiles:
    """The answers to the input whose predictions go to `output`; `key` and `start` are the same on all ranks."""

    def __init__(self, output: Path, key: str, start: str) -> None:
        self.root = output.with_name(f".{output.name}.parts")
        self.folder = self.root / key
        self.start = self.root / start
        self.output = output
        self._lock: IO[str] | None = None
        self._claimed: Path | None = None

    def begin(self) -> set[int]:
        """Take the folder, on the first rank before any other works in it; returns the blocks that are answered.

        Raises FolderInUseError where another process writes the same output.
        """
        self.root.mkdir(exist_ok=True)
        self._lock = open(self.root / "lock", "w")  # noqa: SIM115 - held until `remove` or the end of the process
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FolderInUseError(f"{self.output} is being written by another isostep predict: wait for it") from error
        for left in self.root.iterdir():
            if left.is_dir() and left != self.folder:
                shutil.rmtree(left)
        self.folder.mkdir(exist_ok=True)
        self.start.mkdir()
        for left in self.folder.iterdir():
            if left.suffix != ".json" or self._content(left) is None:
                left.unlink()
        return self.answered()

    def answered(self) -> set[int]:
        """The blocks that are answered."""
        return {int(path.stem) for path in self.folder.glob("*.json")}

    def claim(self, block: int) -> bool:
        """Whether the block is this rank's to answer: the first that asks gets it."""
        path = self.start / self._path(block).stem
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        self._claimed = path
        return True

    def write(self, block: int, answers: Answers) -> None:
        text = json.dumps({"prediction": answers.predictions, "scores": answers.scores}, default=_plain)
        write_atomically(self._path(block), text)

    def read(self, block: int) -> Answers | None:
        """The answers of a block; None where there are none."""
        content = self._content(self._path(block))
        return None if content is None else Answers(content["prediction"], content["scores"])

    def types(self) -> pa.Schema:
        """The Arrow types of prediction and scores over all blocks: a block alone may hold nothing but empty lists."""
        made = []
        for path in sorted(self.folder.glob("*.json")):
            content = self._content(path) or {}
            made.append(pa.schema([(name, pa.array(values).type) for name, values in content.items()]))
        return pa.unify_schemas(made, promote_options="permissive")

    def fail(self) -> None:
        """Tell the other ranks to stop."""
        (self.start / "failed").touch()

    def check(self) -> None:
        """Show that this rank moves. Raises StoppedError where another one has failed."""
        if self._claimed is not None:
            os.utime(self._claimed)
        if self._failed():
            raise StoppedError

    def wait(self, seconds: float) -> None:
        """Return when each claimed block is answered, or a rank has failed.

        Raises TimeoutError where no rank that works on one has moved for so long.
        """
        seen: dict[str, int] = {}
        moved = time.monotonic()
        while not self._failed():
            open_claims = self._open_claims()
            if not open_claims:
                return
            if open_claims != seen:
                seen, moved = open_claims, time.monotonic()
            elif time.monotonic() - moved > seconds:
                raise TimeoutError(f"the rank that works on block {min(seen)} has not moved for {seconds:g} s")
            time.sleep(POLL)

    def _failed(self) -> bool:
        return (self.start / "failed").exists()

    def _open_claims(self) -> dict[str, int]:
        """When the rank that works on a block has last moved, for each block that is not answered."""
        answered = self.answered()
        return {
            path.name: path.stat().st_mtime_ns
            for path in self.start.iterdir()
            if path.name != "failed" and int(path.name) not in answered
        }

    def remove(self) -> None:
        """Everything goes: the output is in its place, or nothing of this can be used again."""
        if self._lock is not None:
            self._lock.close()  # first: NFS keeps the names of files that are open
        shutil.rmtree(self.root)

    def _path(self, block: int) -> Path:
        return self.folder / f"{block:08d}.json"

    def _content(self, path: Path) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return content


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"an answer of type {type(value).__name__} can't be stored")

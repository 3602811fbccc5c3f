"""The run folder's own record: status.json, metrics.jsonl, config.yaml, env.json, history.json.

Only rank 0 writes; the others hold a NullRecord, so that the loop never asks for its rank.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from isostep.durable import write_atomically
from isostep.errors import ConfigError
from isostep.state import TrainState
from isostep.track.redaction import redact

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl; a last line cut off by a crash is left out. No file: no rows.

    Raises ConfigError for a file that is something else.
    """
    return [row for _, row in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[str, Row]]:
    if not path.exists():
        return
    try:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("}\n"):
                    yield line, json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged ({error})\nput it back, or choose another --run.name") from error


def history(rows: list[Row], where: str) -> dict[str, Any]:
    """The lists of history.json from the record: one entry for each evaluation after step 0.

    val_losses and val_accs are those of the set that `where` ("eval", or "eval/NAME" of several) stands for;
    train_losses is the loss on eval.train_examples where they are evaluated, else train/loss of the same row: the mean
    since the row before. train_accs holds nulls where there are none.
    """
    evaluations = [row for row in rows if row["step"] > 0 and f"{where}/loss" in row]
    return {
        "steps": [row["step"] for row in evaluations],
        "train_losses": [row.get("eval/train/loss", row.get("train/loss")) for row in evaluations],
        "val_losses": [row[f"{where}/loss"] for row in evaluations],
        "train_accs": [row.get("eval/train/accuracy") for row in evaluations],
        "val_accs": [row.get(f"{where}/accuracy") for row in evaluations],
        "examples_seen": rows[-1]["examples_seen"] if rows else 0,
    }


def finite_or_null(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them in a row."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class NullRecord:
    """The record of a rank that writes nothing."""

    def status(self, state: str, progress: TrainState, reason: str | None = None, exit_code: int | None = None) -> None:
        """Replace status.json."""

    def begin(self, step: int | None) -> None:
        """Go on from `step`: rows after it are cut off, those up to it stay as they are. None: start anew."""

    def row(self, values: Row) -> None:
        """Append a row to metrics.jsonl."""

    def write_history(self) -> None:
        """Write history.json from metrics.jsonl."""

    def close(self) -> None:
        """Close the open file."""


class Record(NullRecord):
    """Writes the record of a run in `folder`. Nothing of an earlier start is touched before `begin`."""

    def __init__(self, folder: Path, world_size: int, where: str) -> None:
        self.folder = folder
        self.world_size = world_size
        self.where = where
        self.metrics = folder / "metrics.jsonl"
        self._rows: TextIO | None = None

    def begin(self, step: int | None) -> None:
        past = [] if step is None else _lines(self.metrics)
        # a test belongs to the end, which is still to come
        kept = [line for line, row in past if row["step"] <= (step or 0) and "test/loss" not in row]
        write_atomically(self.metrics, "".join(kept))
        if step is None:
            for stale in ("best", "final"):
                shutil.rmtree(self.folder / stale, ignore_errors=True)
        self._rows = open(self.metrics, "a", encoding="utf-8")  # noqa: SIM115 - open for the whole run

    def status(self, state: str, progress: TrainState, reason: str | None = None, exit_code: int | None = None) -> None:
        write_status(self.folder, state, progress, self.world_size, reason, exit_code)

    def row(self, values: Row) -> None:
        assert self._rows is not None, "begin() comes first"
        self._rows.write(json.dumps({name: finite_or_null(value) for name, value in values.items()}) + "\n")
        self._rows.flush()

    def write_history(self) -> None:
        write_atomically(
            self.folder / "history.json", json.dumps(history(read_rows(self.metrics), self.where), indent=1) + "\n"
        )

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


def write_status(
    folder: Path, state: str, progress: TrainState, world_size: int, reason: str | None, exit_code: int | None
) -> None:
    """Replace status.json: what scripts decide from, since the launcher maps every failure to exit code 1."""
    status = {
        "state": state,
        "step": progress.step,
        "reason": redact(reason),
        "exit_code": exit_code,
        "world_size": world_size,
        "restarts": progress.restarts,
        "best_step": progress.best_step,
        "best_value": progress.best_value,
        "train_seconds": round(progress.train_seconds, 3),
        "nonfinite": progress.nonfinite,
        **progress.test,
        "updated": time.time(),
    }
    write_atomically(folder / "status.json", json.dumps(status, indent=1) + "\n")

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isostep.data.labels import Labels
from isostep.data.splits import FileSplit
from isostep.tasks import Encoded, Task


@pytest.fixture
def surveyed() -> Callable[..., list[Any]]:
    """surveyed(task, label, train, *others) -> the targets of `train`, and of the others once it is surveyed."""

    def make(task: Task, label: Any, train: Path, *others: Path) -> list[Any]:
        data = SimpleNamespace(text=("text",), label=label, path=None)
        task.begin(SimpleNamespace(data=data), None, 16)  # type: ignore[arg-type]
        task.labels = task.survey(FileSplit([train]))
        columns = task.target_columns(task.config)
        found: list[Any] = []
        for path in (train, *others):
            for block in FileSplit([path]).blocks(columns):
                found += task.targets(block, Encoded({}))
        return found

    return make


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """jsonl(values, name) -> a file with a row a value: its JSON as `y`, or the whole row where it starts with {."""

    def write(*values: str, name: str = "a.jsonl") -> Path:
        rows = [value if value.startswith("{") else f'{{"text": "x", "y": {value}}}' for value in values]
        (tmp_path / name).write_text("\n".join(rows), encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def csv(tmp_path: Path) -> Callable[..., Path]:
    """csv(header, rows) -> a file."""

    def write(header: str, *rows: str, name: str = "a.csv") -> Path:
        (tmp_path / name).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return tmp_path / name

    return write


@pytest.fixture
def parquet(tmp_path: Path) -> Callable[..., Path]:
    def write(**columns: list[Any]) -> Path:
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    return write


@pytest.fixture
def labels() -> Callable[..., Labels]:
    return lambda *values: Labels.of(list(values))

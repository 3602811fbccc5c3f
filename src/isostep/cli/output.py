"""Writing rows with their predictions: csv, tsv, json, jsonl and parquet, a block at a time."""

from __future__ import annotations

import contextlib
import csv
import datetime
import decimal
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from isostep.data.files import Block
from isostep.durable import sync
from isostep.errors import ConfigError, DataError

if TYPE_CHECKING:
    from isostep.tasks import Answers

ADDED = ("prediction", "scores")

Columns = Mapping[str, list[Any]]


class Format(Protocol):
    """A file being written: blocks in order, then `close`."""

    def write(self, block: Block, columns: Columns) -> None:
        """`columns` are the block's and the ADDED ones, in that order; `block` is there to say where a row stands."""
        ...

    def close(self) -> None: ...


class Writer:
    """Adds to each block what is told of its rows."""

    def __init__(self, target: Format) -> None:
        self.target = target

    def write(self, block: Block, answers: Answers) -> None:
        """`answers` hold an entry for each of the block's rows."""
        self.target.write(block, {**block.columns, ADDED[0]: answers.predictions, ADDED[1]: answers.scores})


def check_output(output: Path) -> str:
    """The format that the ending of `output` says. Raises ConfigError where it can't be written."""
    ending = output.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise ConfigError(f"--output: {output} must end in one of {', '.join('.' + known for known in FORMATS)}")
    if output.is_dir():
        raise ConfigError(f"--output: {output} is a folder; name a file in it")
    if not output.parent.is_dir():
        raise ConfigError(f"--output: there is no folder {output.parent}")
    return ending


@contextlib.contextmanager
def writing(output: Path, source: Path, made: Path, added: Callable[[], pa.Schema]) -> Iterator[Writer]:
    """A writer to the file `made` that takes the place of `output` at the end, and is deleted after any error.

    `source` is the file that the rows come from: parquet hands its column types on, and `added` gives those of the
    ADDED ones. Raises ConfigError when the disk refuses, DataError for a value that the format can't hold.
    """
    try:
        target = FORMATS[check_output(output)](made, source, added)
        try:
            yield Writer(target)
        finally:
            target.close()
        sync(made)
        os.replace(made, output)
        sync(output.parent)
    except OSError as error:
        raise ConfigError(f"--output: {output} can't be written: {error.strerror or error}") from error
    finally:
        made.unlink(missing_ok=True)


class _Text:
    """Base of the text formats."""

    def __init__(self, path: Path, source: Path, added: Callable[[], pa.Schema]) -> None:
        self.file: IO[str] = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115 (closed by close)
        self.empty = True

    def write(self, block: Block, columns: Columns) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.file.close()


class Delimited(_Text):
    """csv and tsv: the columns of the first block; what is no text stands as JSON, a missing value as nothing."""

    def __init__(self, path: Path, source: Path, added: Callable[[], pa.Schema]) -> None:
        super().__init__(path, source, added)
        self.names: list[str] = []

    def write(self, block: Block, columns: Columns) -> None:
        if self.empty:
            self.names = list(columns)
            self.line(self.names, block.source)
            self.empty = False
        later = [name for name in columns if name not in self.names]
        if later:
            raise DataError(
                f"{block.place(0)}: the column {later[0]!r} is first met in the rows from here, when the header is "
                "already written; write to .jsonl"
            )
        for row in range(len(block)):
            values = (columns[name][row] if name in columns else None for name in self.names)
            self.line([_field(value, block, row) for value in values], block.place(row))

    def line(self, fields: list[str], place: str) -> None:
        raise NotImplementedError


class Csv(Delimited):
    """Comma-separated, quoted where needed."""

    def line(self, fields: list[str], place: str) -> None:
        csv.writer(self.file, lineterminator="\n").writerow(fields)


class Tsv(Delimited):
    """Tab-separated and never quoted, so that no field may hold a tab or a line break."""

    def line(self, fields: list[str], place: str) -> None:
        for name, field in zip(self.names, fields, strict=True):
            if any(character in field for character in "\t\n\r"):
                raise DataError(
                    f"{place}: column {name!r} holds a tab or a line break, which tsv can't; write to .jsonl or .csv"
                )
        self.file.write("\t".join(fields) + "\n")


class JsonLines(_Text):
    """One object a line."""

    def write(self, block: Block, columns: Columns) -> None:
        for row in range(len(block)):
            self.file.write(_json({name: values[row] for name, values in columns.items()}, block, row) + "\n")


class JsonArray(_Text):
    """One array, an object a line."""

    def write(self, block: Block, columns: Columns) -> None:
        for row in range(len(block)):
            self.file.write("[\n" if self.empty else ",\n")
            self.file.write(_json({name: values[row] for name, values in columns.items()}, block, row))
            self.empty = False

    def close(self) -> None:
        if not self.file.closed:
            self.file.write("[]\n" if self.empty else "\n]\n")
        super().close()


class Parquet:
    """Parquet: types from a parquet source, else from the first block; those of the added columns from all answers."""

    def __init__(self, path: Path, source: Path, added: Callable[[], pa.Schema]) -> None:
        self.path = path
        known = pq.read_schema(source) if source.suffix.lower() == ".parquet" else pa.schema([])
        self.types = pa.schema([*known, *added()])
        self.schema: pa.Schema | None = None
        self.writer: pq.ParquetWriter | None = None

    def write(self, block: Block, columns: Columns) -> None:
        if self.schema is None:
            self.schema = pa.schema([self._field(block, name, values) for name, values in columns.items()])
            self.writer = pq.ParquetWriter(self.path, self.schema)
        assert self.writer is not None
        later = [name for name in columns if name not in self.schema.names]
        if later:
            raise DataError(
                f"{block.place(0)}: the column {later[0]!r} is first met in the rows from here; write to .jsonl"
            )
        nothing = [None] * len(block)
        arrays = [self._array(block, field, columns.get(field.name, nothing)) for field in self.schema]
        self.writer.write_table(pa.table(arrays, schema=self.schema))

    def _field(self, block: Block, name: str, values: list[Any]) -> pa.Field:
        if name in self.types.names:
            return self.types.field(name)
        try:
            return pa.field(name, pa.array(values).type)
        except pa.ArrowException as error:
            raise self._refused(block, name, error) from error

    def _array(self, block: Block, field: pa.Field, values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, type=field.type)
        except pa.ArrowException as error:
            raise self._refused(block, field.name, error) from error

    def _refused(self, block: Block, name: str, error: Exception) -> DataError:
        reason = str(error).splitlines()[0][:120]
        return DataError(f"{block.place(0)}: column {name!r} has no one type for parquet ({reason}); write to .jsonl")

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _field(value: Any, block: Block, row: int) -> str:
    if value is None:
        return ""
    if isinstance(value, (str, datetime.date, datetime.time, decimal.Decimal)):
        return value if isinstance(value, str) else _written(value)
    return _json(value, block, row)


def _json(value: Any, block: Block, row: int) -> str:
    try:
        return json.dumps(_strict(value), ensure_ascii=False, allow_nan=False, default=_written)
    except TypeError as error:
        raise DataError(f"{block.place(row)}: {error}; write to .parquet") from error


def _strict(value: Any) -> Any:
    """The value with null for NaN and infinities, which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    return [_strict(part) for part in value] if isinstance(value, list) else value


def _written(value: Any) -> str:
    """Types of parquet that JSON lacks."""
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} can't be written as text")


FORMATS: dict[str, Callable[[Path, Path, Callable[[], pa.Schema]], Format]] = {
    "csv": Csv,
    "tsv": Tsv,
    "json": JsonArray,
    "jsonl": JsonLines,
    "parquet": Parquet,
}

"""Reading tables of any size, a block at a time: csv, tsv, json, jsonl and parquet.

Nothing is guessed about a value: csv and tsv fields are texts ("null", "NA" and "None" included, an empty field is the
empty text), JSON and parquet values keep their type, and only an absent or null value is missing (None). Every row
knows the line it starts on, so that a complaint about it can be acted upon.

The delimited formats are split by Python's own reader and not by Arrow's: that one gives row numbers where lines are
needed (quoted line breaks and blank lines shift them) and refuses a row that is longer than its block.
"""

from __future__ import annotations

import csv
import difflib
import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from isostep.data.json_rows import JsonArray, JsonRow, json_lines
from isostep.errors import DataError

BLOCK_ROWS = 2048
BLOCK_CHARACTERS = 8 << 20  # a block ends early when its rows are this long: memory is bounded in bytes, too


@dataclass(frozen=True)
class Block:
    """A run of consecutive rows: `columns` holds one list of values per column, all of the same length."""

    columns: dict[str, list[Any]]
    source: str  # the file's path, or what else names the place that the rows come from
    numbers: Sequence[int]  # of each row: its line in the file, or its position, both from 1
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.numbers)

    def place(self, row: int) -> str:
        """Where the block's `row` stands, for an error text: `file.csv:12` or `file.parquet, row 12`."""
        number = self.numbers[row]
        return f"{self.source}:{number}" if self.unit == "line" else f"{self.source}, {self.unit} {number}"


def expand(pattern: str) -> list[Path]:
    """The files that a path or a glob means, sorted. Raises DataError where there is none."""
    path = Path(pattern).expanduser()
    if path.is_dir():
        raise DataError(
            f"{pattern} is a folder, not a file: name the files in it, for example {pattern.rstrip('/')}/*.csv"
        )
    if path.exists():  # before looking for wildcards: a file's name may hold brackets
        paths = [path]
    elif glob.has_magic(pattern):
        paths = [found for name in sorted(glob.glob(str(path), recursive=True)) if (found := Path(name)).is_file()]
        if not paths:
            raise DataError(f"{pattern} matches no file (looked from {Path.cwd()})")
    else:
        raise DataError(f"{pattern}: no such file (looked from {Path.cwd()})")
    for found in paths:
        file_format(found)
    return paths


def file_format(path: Path) -> str:
    """The format that the name's ending says, a key of FORMATS. Raises DataError for any other ending."""
    suffix = path.suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        said = f"the ending .{suffix} is unknown" if suffix else "the name has no ending"
        raise DataError(f"{path}: {said}; can be read: {', '.join('.' + known for known in FORMATS)}")
    return suffix


def read(path: str | Path, columns: Sequence[str] | None = None) -> Iterator[Block]:
    """The file's rows in order, in blocks of at most BLOCK_ROWS; only `columns` where they are named.

    Memory is bounded by a block, by the longest row, and for parquet by a row group. Blank lines are no rows.
    Raises DataError for a missing, unreadable, broken or empty file and for a column that it lacks.
    """
    path = Path(path).expanduser()
    reader = FORMATS[file_format(path)]
    if path.is_dir():
        raise DataError(f"{path} is a folder, not a file")
    empty = True
    try:
        for block in reader(path, columns):
            empty = False
            yield block
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{_undecodable_line(path)}: not valid UTF-8 ({error.reason}); convert it to UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}") from error
    if empty:
        raise DataError(f"{path} is empty: it holds no rows")


def check_columns(source: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Raises DataError where a wanted column is not among those there, or stands there twice."""
    for name in wanted:
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{source}: no column {name!r}; its columns: {_shortened(there)}{hint}")
        if list(there).count(name) > 1:
            raise DataError(f"{source}: the column {name!r} stands there more than once; rename one")


def _shortened(names: Sequence[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def _undecodable_line(path: Path) -> int:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return next(n for n, line in enumerate(file, 1) if any("\udc80" <= character <= "\udcff" for character in line))


# ---------------------------------------------------------------------------------------------------------------------
# csv and tsv


def _csv_fields(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**31 - 1)  # a text of any length is a text; the limit is the module's, not the reader's
    reader = csv.reader(file, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            why = "a quote that opens here is never closed" if "unexpected end" in str(error) else str(error)
            raise DataError(f'{path}:{line}: broken csv: {why}; inner quotes are doubled, like ""this""') from error
        yield line, fields


def _tsv_fields(path: Path, file: TextIO) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(file, 1):
        line = line.removesuffix("\n").removesuffix("\r")
        yield number, line.split("\t") if line else []


def _delimited(
    fields: Callable[[Path, TextIO], Iterator[tuple[int, list[str]]]], newline: str
) -> Callable[[Path, Sequence[str] | None], Iterator[Block]]:
    def reader(path: Path, columns: Sequence[str] | None) -> Iterator[Block]:
        with open(path, encoding="utf-8-sig", newline=newline) as file:
            rows = ((line, row) for line, row in fields(path, file) if row)
            _, header = next(rows, (0, []))
            if not header:
                return
            wanted = header if columns is None else columns
            check_columns(str(path), wanted, header)
            picked = [header.index(name) for name in wanted]
            numbers: list[int] = []
            taken: list[list[str]] = []
            characters = 0
            for line, row in rows:
                if len(row) != len(header):
                    raise DataError(f"{path}:{line}: expected {len(header)} fields, found {len(row)}")
                numbers.append(line)
                taken.append(row)
                characters += sum(map(len, row))
                if len(taken) >= BLOCK_ROWS or characters >= BLOCK_CHARACTERS:
                    yield _block(path, wanted, picked, taken, numbers)
                    numbers, taken, characters = [], [], 0
            if taken:
                yield _block(path, wanted, picked, taken, numbers)

    return reader


def _block(path: Path, names: Sequence[str], picked: list[int], rows: list[list[str]], numbers: list[int]) -> Block:
    return Block({name: [row[i] for row in rows] for name, i in zip(names, picked, strict=True)}, str(path), numbers)


# ---------------------------------------------------------------------------------------------------------------------
# json and jsonl


def _json(path: Path, columns: Sequence[str] | None) -> Iterator[Block]:
    """An array of objects, or else one object a line."""
    with open(path, encoding="utf-8-sig") as file:
        start = file.read(4096).lstrip()[:1]
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        yield from _gathered(path, JsonArray(path, file) if start == "[" else json_lines(path, file), columns)


def _jsonl(path: Path, columns: Sequence[str] | None) -> Iterator[Block]:
    with open(path, encoding="utf-8-sig", newline="\n") as file:
        yield from _gathered(path, json_lines(path, file), columns)


def _gathered(path: Path, objects: Iterable[JsonRow], columns: Sequence[str] | None) -> Iterator[Block]:
    numbers: list[int] = []
    rows: list[dict[str, Any]] = []
    characters, first = 0, True

    def block() -> Block:
        there = list(dict.fromkeys(key for row in rows for key in row))
        if first and columns is not None:  # later on an absent key is a missing value
            check_columns(str(path), columns, there)
        names = there if columns is None else columns
        return Block({name: [row.get(name) for row in rows] for name in names}, str(path), numbers)

    for number, size, row in objects:
        numbers.append(number)
        rows.append(row)
        characters += size
        if len(rows) >= BLOCK_ROWS or characters >= BLOCK_CHARACTERS:
            yield block()
            numbers, rows, characters, first = [], [], 0, False
    if rows:
        yield block()


# ---------------------------------------------------------------------------------------------------------------------
# parquet


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Block]:
    try:
        with open(path, "rb") as raw, pq.ParquetFile(raw) as file:
            names = file.schema_arrow.names
            wanted = list(names if columns is None else columns)
            check_columns(str(path), wanted, names)
            done = 0
            for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=wanted):
                if batch.num_rows:
                    values = {name: batch.column(name).to_pylist() for name in wanted}
                    yield Block(values, str(path), range(done + 1, done + batch.num_rows + 1), "row")
                done += batch.num_rows
    except pa.ArrowException as error:
        raise DataError(f"{path}: broken parquet: {str(error).splitlines()[0]}") from error


FORMATS: dict[str, Callable[[Path, Sequence[str] | None], Iterator[Block]]] = {
    "csv": _delimited(_csv_fields, newline=""),
    "tsv": _delimited(_tsv_fields, newline="\n"),
    "json": _json,
    "jsonl": _jsonl,
    "parquet": _parquet,
}

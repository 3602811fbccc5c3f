"""One split of the data: rows of files, of a dataset or of the built-in generator.

A split gives its rows in order as blocks, as often as it is asked, and knows a fingerprint of its content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import xxhash

from isostep.data import builtin, files
from isostep.data.files import Block
from isostep.errors import DataError

if TYPE_CHECKING:
    import datasets

_hashes: dict[tuple[str, int, int], str] = {}  # (path, size, mtime_ns) -> xxh3, for as long as this process lives


class Split(Protocol):
    """One split of the data."""

    @property
    def label_names(self) -> dict[str, list[str]]:
        """The class names of those columns whose integers the data itself names."""
        ...

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        """The rows in order. Raises DataError for missing columns, broken rows and no rows at all."""
        ...

    def fingerprint(self) -> str:
        """Changes when the content does."""
        ...


@dataclass(frozen=True)
class FileSplit:
    """Rows of one or several files, one after another."""

    paths: list[Path]
    label_names: dict[str, list[str]] = field(default_factory=dict)

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        for path in self.paths:
            yield from files.read(path, columns)

    def fingerprint(self) -> str:
        return xxhash.xxh3_128_hexdigest(
            " ".join(path.suffix.lower() + ":" + file_hash(path) for path in self.paths).encode()
        )


@dataclass(frozen=True)
class DatasetSplit:
    """Rows of a datasets.Dataset.

    One that was loaded has a fingerprint of its own; one that a program made (`made`) is known by its content, since
    every process made it anew.
    """

    dataset: datasets.Dataset
    name: str
    made: bool = False

    @property
    def label_names(self) -> dict[str, list[str]]:
        # of a column of lists the entries' names
        kinds = {column: getattr(kind, "feature", kind) for column, kind in self.dataset.features.items()}
        return {column: kind.names for column, kind in kinds.items() if hasattr(kind, "names")}

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        there = self.dataset.column_names
        wanted = list(there if columns is None else columns)
        files.check_columns(self.name, wanted, there)
        if not len(self.dataset):
            raise DataError(f"{self.name} is empty: it holds no rows")
        done = 0
        for table in self.dataset.select_columns(wanted).with_format("arrow").iter(files.BLOCK_ROWS):
            values = {name: table.column(name).to_pylist() for name in wanted}
            yield Block(values, self.name, range(done + 1, done + table.num_rows + 1), "row")
            done += table.num_rows

    def fingerprint(self) -> str:
        if self.made:
            state = xxhash.xxh3_128(f"{self.dataset.features}".encode())
            for table in self.dataset.with_format("arrow").iter(files.BLOCK_ROWS):
                state.update(repr(table.to_pydict()).encode("utf-8", "surrogatepass"))
            return state.hexdigest()
        return xxhash.xxh3_128_hexdigest(
            f"{self.dataset._fingerprint} {len(self.dataset)} {self.dataset.features}".encode()
        )


@dataclass(frozen=True)
class BuiltinSplit:
    """Rows of the generator in isostep.data.builtin."""

    split: str
    label_names: dict[str, list[str]] = field(default_factory=dict)

    def blocks(self, columns: Sequence[str] | None = None) -> Iterator[Block]:
        name = f"builtin:sms, {self.split}"
        rows = builtin.sms(self.split)
        values: dict[str, list[Any]] = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
        wanted = list(values if columns is None else columns)
        files.check_columns(name, wanted, list(values))
        yield Block({column: values[column] for column in wanted}, name, range(1, len(rows) + 1), "row")

    def fingerprint(self) -> str:
        return f"builtin:sms {builtin.VERSION} {self.split}"


def file_hash(path: Path) -> str:
    """xxh3 (128 bits) of the file's bytes; read once a process as long as size and time stay."""
    try:
        status = path.stat()
        key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
        if key not in _hashes:
            state = xxhash.xxh3_128()
            with open(path, "rb") as file:
                while chunk := file.read(1 << 22):
                    state.update(chunk)
            _hashes[key] = state.hexdigest()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}") from error
    return _hashes[key]

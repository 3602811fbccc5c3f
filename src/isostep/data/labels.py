"""The classes: found by a pass over the whole training data, ordered the same way on every machine.

Numbers stand in order of their value, texts in that of their code points, false before true; where the data itself
names its classes (a ClassLabel column of the datasets library), in the order it gives them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from isostep.data.files import Block
from isostep.data.splits import Split
from isostep.errors import DataError

Label = int | bool | str

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")  # as written by a program: "01" and "+1" are texts
_SHOWN = 8


@dataclass(frozen=True)
class Labels:
    """The classes in the order of their indices: `values` as in the data, all of one type, and `names` to print."""

    values: list[Label]
    names: list[str]
    _lookup: dict[tuple[type, Label], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lookup = {(type(value), value): index for index, value in enumerate(self.values)}  # True is not 1 here
        object.__setattr__(self, "_lookup", lookup)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    @property
    def label2id(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def index(self, value: Any) -> int:
        """The class of a value as in the data; where the classes are integers "7" and 7.0 mean 7. KeyError if none."""
        return self._lookup[(type(value), value)] if (type(value), value) in self._lookup else self._by_number(value)

    def _by_number(self, value: Any) -> int:
        written = isinstance(value, str) and _INTEGER.fullmatch(value)
        if written or (isinstance(value, float) and value.is_integer()):
            return self._lookup[(int, int(value))]
        raise KeyError(value)

    def to_json(self) -> dict[str, Any]:
        return {"values": self.values, "names": self.names}

    @classmethod
    def from_json(cls, made: dict[str, Any]) -> Labels:
        return cls(list(made["values"]), list(made["names"]))

    @classmethod
    def of(cls, values: list[Label]) -> Labels:
        """Classes without names of their own."""
        return cls(values, [str(value).lower() if isinstance(value, bool) else str(value) for value in values])


def find(split: Split, column: str) -> Labels:
    """The classes of the whole training split.

    Raises DataError for a label that is missing, empty or of no usable type, for a mixture of types, and where there
    are fewer than two classes.
    """
    seen: dict[tuple[type, Label], str] = {}  # each distinct label and where it stands first
    for block, row, value in _values(split, column):
        key = (type(value), value)
        if key not in seen:
            seen[key] = block.place(row)
    kinds = {kind: (value, place) for (kind, value), place in seen.items()}
    if len(kinds) > 1:
        told = " and ".join(f"{kind.__name__} ({value!r} at {place})" for kind, (value, place) in kinds.items())
        raise DataError(f"column {column!r} holds labels of several types: {told}; make them one type")
    values = [value for _, value in seen]
    if len(values) < 2:
        only, place = values[0], next(iter(seen.values()))
        raise DataError(
            f"column {column!r}: every label is {only!r} (first at {place}); a classifier needs two or more"
        )
    if column in split.label_names:
        names = split.label_names[column]
        return Labels(list(range(len(names))), names)
    if all(isinstance(value, str) and _INTEGER.fullmatch(value) for value in values) and _untyped(split):
        values = [int(value) for value in values]
    return Labels.of(sorted(values))


def _untyped(split: Split) -> bool:
    """Whether the split's texts may be numbers, since its files know nothing else."""
    paths = getattr(split, "paths", [])
    return any(path.suffix.lower() in (".csv", ".tsv") for path in paths)


def _values(split: Split, column: str) -> Iterator[tuple[Block, int, Label]]:
    named = len(split.label_names.get(column, []))
    for block in split.blocks([column]):
        for row, value in enumerate(block.columns[column]):
            yield block, row, _checked(value, block, row, column, named)


def _checked(value: Any, block: Block, row: int, column: str, named: int) -> Label:
    """The label, an integral float as an integer. Raises DataError for what can't be a label."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise DataError(
            f"{block.place(row)}: the label is {'missing' if value is None else 'empty'} (column {column!r})"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, (int, str)):
        raise DataError(
            f"{block.place(row)}: {_short(value)} can't be a label (column {column!r}): "
            "integers, booleans and texts can"
        )
    if named and not (isinstance(value, int) and 0 <= value < named):
        raise DataError(f"{block.place(row)}: label {value!r} is outside the {named} named classes (column {column!r})")
    return value


def indices(labels: Labels, block: Block, column: str) -> list[int]:
    """The classes of a block's rows. Raises DataError for a label that is missing or that training lacks."""
    made = []
    for row, value in enumerate(block.columns[column]):
        try:
            made.append(labels.index(value))
        except (KeyError, TypeError):  # TypeError: a value that can't be a key, such as a list
            value = _checked(value, block, row, column, 0)
            known = ", ".join(map(repr, labels.values[:_SHOWN]))
            more = f", ... ({len(labels)} in all)" if len(labels) > _SHOWN else ""
            raise DataError(
                f"{block.place(row)}: label {_short(value)} (column {column!r}) does not occur in the training data, "
                f"whose labels are {known}{more}"
            ) from None
    return made


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 60 else said[:57] + "..."

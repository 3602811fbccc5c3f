"""JSON objects one by one, each with its line: from JSON lines, or from an array that need not fit in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from isostep.errors import DataError

_CHUNK = 1 << 20  # characters read at a time from an array

JsonRow = tuple[int, int, dict[str, Any]]  # the line that the object starts on, about its length, the object


def _object(path: Path, line: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f'{path}:{line}: expected an object like {{"text": "...", "label": ...}}, found {_kind(value)}')
    return value


def _kind(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def json_lines(path: Path, file: TextIO) -> Iterator[JsonRow]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                value = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                raise DataError(f"{path}:{number}: broken JSON: {_reason(error)}") from error
            yield number, len(line), _object(path, number, value)


def _reason(error: json.JSONDecodeError | RecursionError) -> str:
    return f"{error.msg} (column {error.colno})" if isinstance(error, json.JSONDecodeError) else "nested too deeply"


class JsonArray:
    """An array's elements, decoded one by one from a buffer that holds little more than the current one."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self.file = path, file
        self.buffer, self.at, self.ended = "", 0, False
        self.line, self.counted = 1, 0  # the line of buffer[counted]

    def grow(self) -> None:
        """Drop what is done and read on: as much again as is held, so that a long element costs linear time."""
        self.number(self.at)
        rest = self.buffer[self.at :]
        more = self.file.read(max(_CHUNK, len(rest)))
        self.buffer, self.at, self.counted, self.ended = rest + more, 0, 0, not more

    def number(self, position: int) -> int:
        """The line of a position; positions must not go back."""
        self.line += self.buffer.count("\n", self.counted, position)
        self.counted = position
        return self.line

    def broken(self, why: str) -> DataError:
        return DataError(f"{self.path}:{self.number(self.at)}: broken JSON: {why}")

    def peek(self) -> str:
        """The next character that is no white space; "" at the end of the file."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.buffer) or self.ended:
                return self.buffer[self.at : self.at + 1]
            self.grow()

    def element(self) -> Any:
        decoder = json.JSONDecoder()
        while True:
            try:
                value, end = decoder.raw_decode(self.buffer, self.at)
                if end < len(self.buffer) or self.ended:  # else a number might go on
                    self.at = end
                    return value
            except RecursionError as error:
                raise self.broken("nested too deeply") from error
            except json.JSONDecodeError as error:
                cut_off = error.msg.startswith("Unterminated string") or error.pos > len(self.buffer) - 16
                if self.ended or not cut_off:
                    self.at = error.pos
                    raise self.broken(error.msg) from error
            self.grow()

    def __iter__(self) -> Iterator[JsonRow]:
        self.peek()
        self.at += 1  # the opening bracket
        separator = "," if self.peek() != "]" else "]"
        first = True
        while separator == ",":
            if not first:
                self.at += 1
                self.peek()
            first = False
            number = self.number(self.at)
            value = self.element()
            yield number, _weight(value), _object(self.path, number, value)
            separator = self.peek()
        if separator != "]":
            raise self.broken("an array's elements are parted by ',' and it ends with ']'")
        self.at += 1
        if self.peek():
            raise self.broken("text after the array's end")


def _weight(value: Any) -> int:
    return sum(len(field) for field in value.values() if isinstance(field, str)) if isinstance(value, dict) else 0

"""`isostep plan --show N`: training rows as the model gets them, for people to read."""

from __future__ import annotations

import copy
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isostep.data import sources
from isostep.data.files import Block

if TYPE_CHECKING:
    from isostep.cli.plan import Planned
    from isostep.data.plan import Part
    from isostep.tasks import Task

WIDTH = 100  # characters in a line
UNCUT = 2**31 - 1  # tokens: more than any row has, and the most that tokenizers are sure to take
NAME = 9  # characters before what a line says


class Source(NamedTuple):
    """Where a row came from."""

    place: str
    tokens: list[int]
    """What it would be without truncation."""


def show(planned: Planned, count: int) -> Iterator[str]:
    """The lines for the first `count` training rows, each in the micro-batch that it has in the first epoch."""
    _, task, data, plan = planned
    numbers = range(min(count, len(data.train)))
    found = _sources(planned, len(numbers))
    places = np.argsort(plan.order(0), kind="stable")  # where each row stands in the epoch
    for number in numbers:
        step = int(places[number]) // plan.batch_size
        rank, part = _part(planned, step, number)
        batch = task.collate(data.train.__getitems__(list(part.indices)))
        inputs = {key: values[part.indices.index(number)].tolist() for key, values in batch["inputs"].items()}
        row = data.train[number]
        source = next(found, None)
        cut = _removed(source.tokens, row["input_ids"]) if source is not None else None
        others = f" with {len(part.indices) - 1} others" if len(part.indices) > 1 else ""
        yield ""
        yield f"row {number + 1}" + (f"  {_plain(source.place)}" if source is not None and cut is not None else "")
        yield _line("batch", f"epoch 1, step {step + 1}, rank {rank}{others}, {len(inputs['input_ids'])} tokens wide")
        yield from _tokens(task, row, inputs)
        if source is not None and cut is not None:
            yield from _cut(task, source.tokens, cut)


def _part(planned: Planned, step: int, row: int) -> tuple[int, Part]:
    """The rank and the micro-batch of the first epoch that hold the row."""
    parts = (pair for ranks in planned.plan.window(0, step).passes for pair in enumerate(ranks))
    return next((rank, part) for rank, part in parts if part.weight and row in part.indices)


def _sources(planned: Planned, count: int) -> Iterator[Source]:
    """Where the first training rows came from, in order: read and encoded again, without truncation."""
    config, task, data, _ = planned
    whole = copy.copy(task)
    whole.begin(config, task.tokenizer, UNCUT)
    indices = data.train._indices  # of the file's rows, where others were split off
    wanted = iter(range(count) if indices is None else indices.column(0).to_numpy()[:count].tolist())
    number, done = next(wanted), 0
    for block in sources.resolve(config).train.blocks(task.input_columns(config)):
        while number < done + len(block):
            row = number - done
            values = {name: [column[row]] for name, column in block.columns.items()}
            one = Block(values, block.source, [block.numbers[row]], block.unit)
            yield Source(one.place(0), whole.encode(one).columns["input_ids"][0])
            if (following := next(wanted, None)) is None:
                return
            number = following
        done += len(block)


def _removed(whole: Sequence[int], kept: Sequence[int]) -> list[slice] | None:
    """The one or two runs (of a pair's texts) that were cut out of `whole` to leave `kept`; None if it is another row.

    Whatever stands before the first and after the last run is the same in both.
    """
    least = min(len(whole), len(kept))
    front = next((i for i in range(least) if whole[i] != kept[i]), least)
    back = next((i for i in range(least - front) if whole[-1 - i] != kept[-1 - i]), least - front)
    middle, end = kept[front : len(kept) - back], len(whole) - back
    for start in range(front, end - len(middle) + 1):
        if whole[start : start + len(middle)] == middle:
            runs = (slice(front, start), slice(start + len(middle), end))
            return [run for run in runs if run.stop > run.start]
    return None


def _cut(task: Task, whole: Sequence[int], cut: Sequence[slice]) -> Iterator[str]:
    """How many tokens truncation cut, and their text."""
    if not cut:
        yield _line("cut", "nothing")
    for run in cut:
        said = f"{run.stop - run.start} of {len(whole)} tokens: {_plain(task.tokenizer.decode(whole[run]))}"
        lines = textwrap.wrap(said, WIDTH - NAME)
        yield _line("cut", lines[0])
        yield from (_line("", line) for line in lines[1:])


def _tokens(task: Task, row: dict[str, Any], inputs: dict[str, list[int]]) -> Iterator[str]:
    """Pieces with their mask below them, and segments and labels where each piece has its own; the row's label else."""
    size, ids = len(row["input_ids"]), inputs["input_ids"]
    pieces = [_plain(piece) for piece in task.tokenizer.convert_ids_to_tokens(ids[:size])]
    lines = {"pieces": pieces, "mask": [str(value) for value in inputs["attention_mask"][:size]]}
    if any(row.get("token_type_ids", ())):
        lines["segment"] = [str(value) for value in row["token_type_ids"]]
    label = task.shown(row["labels"])
    if isinstance(label, list):
        lines["label"] = [_plain(text) for text in label]
    if padding := len(ids) - size:  # one entry for all of it
        ends = {"pieces": f"{_plain(task.tokenizer.convert_ids_to_tokens(ids[size]))} x{padding}",
                "mask": str(inputs["attention_mask"][size])}  # fmt: skip
        lines = {name: [*cells, ends.get(name, "-")] for name, cells in lines.items()}
    yield from _aligned(lines)
    if isinstance(label, str):
        wrapped = textwrap.wrap(_plain(label), WIDTH - NAME)
        yield from (_line("" if i else "label", line) for i, line in enumerate(wrapped))


def _aligned(lines: dict[str, list[str]]) -> Iterator[str]:
    """Lines of cells below each other, broken together where they are wider than WIDTH."""
    columns = list(zip(*lines.values(), strict=True))
    widths = [max(map(_width, cells)) for cells in columns]
    start = 0
    while start < len(columns):
        end, room = start + 1, WIDTH - NAME - widths[start]
        while end < len(columns) and (room := room - 1 - widths[end]) >= 0:
            end += 1
        for name, cells in lines.items():
            padded = (cells[i] + " " * (widths[i] - _width(cells[i])) for i in range(start, end))
            yield _line(name, " ".join(padded))
        start = end


def _line(name: str, text: str) -> str:
    return f"  {name:<{NAME - 2}}{text}".rstrip()


def _plain(text: str) -> str:
    """Characters that a terminal would act upon, or not show, are written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _width(text: str) -> int:
    """Columns on a terminal."""
    return sum(0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF") for c in text)

"""The classes of a training split, and labels that can't be one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isostep.data import labels
from isostep.data.labels import Labels
from isostep.data.splits import DatasetSplit, FileSplit
from isostep.errors import DataError


def split(folder: Path, values: list[Any], kind: str) -> FileSplit:
    path = folder / f"a.{kind}"
    if kind == "csv":
        path.write_text("y,x\n" + "".join(f"{value},-\n" for value in values))
    elif kind == "jsonl":
        path.write_text("".join(json.dumps({"y": value}) + "\n" for value in values))
    else:
        pq.write_table(pa.table({"y": values}), path)
    return FileSplit([path])


def fault(made: FileSplit) -> str:
    with pytest.raises(DataError) as caught:
        labels.find(made, "y")
    return str(caught.value).replace(str(made.paths[0].parent) + "/", "")


@pytest.mark.parametrize(
    ("kind", "values", "classes"),
    [
        ("csv", ["10", "9", "-1", "9"], [-1, 9, 10]),
        ("csv", ["10", "9", "01"], ["01", "10", "9"]),
        ("csv", ["spam", "Ham", "élan", "null"], ["Ham", "null", "spam", "élan"]),
        ("csv", ["True", "False"], ["False", "True"]),
        ("jsonl", [3, 1, 2], [1, 2, 3]),
        ("jsonl", [True, False], [False, True]),
        ("jsonl", ["10", "9"], ["10", "9"]),
        ("jsonl", [2.0, 1, 3.0], [1, 2, 3]),
        ("parquet", [7.0, 5.0], [5, 7]),
        ("parquet", [True, False], [False, True]),
    ],
)
def test_order_and_type(tmp_path: Path, kind: str, values: list[Any], classes: list[Any]) -> None:
    made = split(tmp_path, values, kind)
    found = labels.find(made, "y")
    assert found.values == classes and [type(v) for v in found.values] == [type(c) for c in classes]
    assert found.id2label == dict(enumerate(found.names)) and found.label2id == {
        n: i for i, n in enumerate(found.names)
    }
    block = next(made.blocks(["y"]))
    wanted = [classes.index(type(classes[0])(value)) for value in values]
    assert labels.indices(found, block, "y") == wanted
    again = Labels.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found and labels.indices(again, block, "y") == wanted


def test_names() -> None:
    assert Labels.of([False, True]).names == ["false", "true"]
    assert Labels.of([1, 2]).names == ["1", "2"]


def test_named_classes() -> None:
    features = datasets.Features({"y": datasets.ClassLabel(names=["z", "a", "m"])})
    rows = datasets.Dataset.from_dict({"y": [2, 0, 2]}, features=features)
    assert labels.find(DatasetSplit(rows, "set"), "y") == Labels([0, 1, 2], ["z", "a", "m"])
    unlabelled = datasets.Dataset.from_dict({"y": [0, 1, -1]}, features=features)
    with pytest.raises(DataError, match="set, row 3: label -1"):
        labels.find(DatasetSplit(unlabelled, "set"), "y")


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        ("csv", ["1", "2", ""], "a.csv:4: the label is empty (column 'y')"),
        ("csv", ["1", "2", "  "], "a.csv:4: the label is empty (column 'y')"),
        ("jsonl", [1, None, 2], "a.jsonl:2: the label is missing (column 'y')"),
        ("parquet", ["x", "y", None], "a.parquet, row 3: the label is missing (column 'y')"),
        ("jsonl", [1, 0.5], "a.jsonl:2: 0.5 can't be a label"),
        ("jsonl", [1, float("nan")], "a.jsonl:2: nan can't be a label"),
        ("jsonl", [1, ["x"]], "a.jsonl:2: ['x'] can't be a label"),
        (
            "jsonl",
            [1, "1"],
            "column 'y' holds labels of several types: int (1 at a.jsonl:1) and str ('1' at a.jsonl:2)",
        ),
        (
            "jsonl",
            [1, True],
            "column 'y' holds labels of several types: int (1 at a.jsonl:1) and bool (True at a.jsonl:2)",
        ),
        ("csv", ["x", "x"], "column 'y': every label is 'x' (first at a.csv:2)"),
    ],
)
def test_faults(tmp_path: Path, kind: str, values: list[Any], said: str) -> None:
    assert fault(split(tmp_path, values, kind)).startswith(said)


@pytest.mark.parametrize(
    ("classes", "value", "index"),
    [([1, 2], 2, 1), ([1, 2], "2", 1), ([1, 2], 2.0, 1), (["1", "2"], "2", 1), ([False, True], True, 1),
     ([1, 2], True, None), ([1, 2], "02", None), ([False, True], 1, None), (["1", "2"], 2, None), ([1, 2], 1.5, None)],
)  # fmt: skip
def test_index(classes: list[Any], value: Any, index: int | None) -> None:
    if index is None:
        with pytest.raises(KeyError):
            Labels.of(classes).index(value)
    else:
        assert Labels.of(classes).index(value) == index


def test_a_label_that_training_lacks(tmp_path: Path) -> None:
    block = next(split(tmp_path, ["a", "b", "z" * 100], "csv").blocks(["y"]))
    known = Labels.of(["a", "b", *"cdefghij"])
    with pytest.raises(DataError) as caught:
        labels.indices(known, block, "y")
    said = str(caught.value).removeprefix(f"{tmp_path}/")
    assert said.startswith("a.csv:4: label 'zzz") and "(column 'y') does not occur in the training data" in said
    assert said.endswith("whose labels are 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', ... (10 in all)") and len(said) < 240

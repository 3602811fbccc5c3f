"""What config.data means, and what is said where it means nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from isostep.data import builtin, sources, splits, tokens
from isostep.data.files import Block
from isostep.errors import ConfigError, DataError
from isostep.tasks import Classification

Make = Callable[..., Any]


def texts(split: splits.Split | None) -> list[str]:
    assert split is not None
    return [text for block in split.blocks(["text"]) for text in block.columns["text"]]


def only(sets: dict[str, splits.Split]) -> splits.Split:
    """The validation set of a configuration that names one."""
    assert list(sets) == [""]
    return sets[""]


def csv(path: Path, *values: str) -> Path:
    path.write_text("text,label\n" + "".join(f"{value},{i % 2}\n" for i, value in enumerate(values)))
    return path


def fault(kind: type[Exception], config: Any) -> str:
    with pytest.raises(kind) as caught:
        sources.resolve(config)
    return str(caught.value)


def test_files_and_globs(tmp_path: Path, config: Make) -> None:
    csv(tmp_path / "b.csv", "three"), csv(tmp_path / "a.csv", "one", "two"), csv(tmp_path / "dev.csv", "four")
    found = sources.resolve(config(train=tmp_path / "[ab].csv", validation=tmp_path / "dev.csv"))
    assert texts(found.train) == ["one", "two", "three"]
    assert texts(only(found.validation)) == ["four"]
    assert found.test is None
    assert list(found.splits()) == ["train", "validation"]


def test_local_folder(tmp_path: Path, config: Make) -> None:
    for name in ("train-00001.csv", "train-00000.csv", "trainer.csv", "val_1.csv", "values.csv", "test.csv"):
        csv(tmp_path / name, name)
    found = sources.resolve(config(path=tmp_path))
    assert texts(found.train) == ["train-00000.csv", "train-00001.csv"]
    assert texts(only(found.validation)) == ["val_1.csv"]
    assert found.test is None  # a test split often has no labels: only when it is asked for
    assert texts(sources.resolve(config(path=tmp_path, test="test")).test) == ["test.csv"]
    other = csv(tmp_path / "other.csv", "own file")
    assert texts(only(sources.resolve(config(path=tmp_path, validation=other)).validation)) == ["own file"]
    assert "holds no file extra*" in fault(DataError, config(path=tmp_path, validation="extra"))
    csv(tmp_path / "train.tsv", "x")
    assert "several formats" in fault(DataError, config(path=tmp_path))


def test_several_validation_sets(tmp_path: Path, config: Make) -> None:
    train, own, other = (csv(tmp_path / f"{name}.csv", name) for name in ("train", "own", "other"))
    found = sources.resolve(config(train=train, validation={"own": str(own), "far": str(other)}, test=other))
    assert {name: texts(split) for name, split in found.validation.items()} == {"own": ["own"], "far": ["other"]}
    assert list(found.splits()) == ["train", "validation.own", "validation.far", "test"]
    said = fault(DataError, config(train=train, validation={"own": str(own), "far": "no/such.csv"}))
    assert said == f"no/such.csv: no such file (looked from {Path.cwd()})"
    assert fault(ConfigError, config(train=train, validation={"own": "dev"})).startswith("data.validation.own: 'dev'")
    named = sources.resolve(config(path="builtin:sms", validation={"own": "validation", "last": "test"}))
    assert texts(named.validation["last"]) == [text for text, _ in builtin.sms("test")]


@pytest.mark.parametrize("parted", [True, False])
def test_folder_from_save_to_disk(tmp_path: Path, config: Make, parted: bool) -> None:
    rows = datasets.Dataset.from_dict({"text": ["one", "two"], "label": [0, 1]})
    (datasets.DatasetDict({"train": rows, "dev": rows}) if parted else rows).save_to_disk(tmp_path / "saved")
    found = sources.resolve(config(path=tmp_path / "saved"))
    assert texts(found.train) == ["one", "two"]
    assert list(found.validation) == ([""] if parted else [])


def test_hub_dataset(config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = datasets.Dataset.from_dict({"text": ["one", None], "label": [0, 1]}, features=features)
    asked: list[Any] = []

    def load(path: str, name: str | None, revision: str | None, split: str | None) -> Any:
        asked.append((path, name, revision, split))
        return rows.select([0]) if split else datasets.DatasetDict({"train": rows, "validation": rows, "test": rows})

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = sources.resolve(config(path="some/set", name="part", revision="v1"))
    assert asked == [("some/set", "part", "v1", None)]
    assert texts(found.train) == ["one", None]
    assert found.train.label_names == {"label": ["no", "yes"]}
    block = next(found.train.blocks())
    assert isinstance(block, Block) and block.place(1) == "some/set, train, row 2"
    assert list(found.validation) == [""] and found.test is None
    assert texts(sources.resolve(config(path="some/set", train="train[:50%]")).train) == ["one"]
    assert asked[-1] == ("some/set", None, None, "train[:50%]")
    assert "has no split 'tset'; it has: train, validation, test" in fault(
        DataError, config(path="some/set", test="tset")
    )


@pytest.mark.parametrize("problem", [ConnectionError("no network"), ValueError("Config name is missing.\nPick one")])
def test_hub_dataset_that_cannot_be_had(config: Make, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(datasets, "load_dataset", load)
    said = fault(DataError, config(path="no/such", name="part"))
    assert said.startswith("data.path: the dataset no/such, part can't be had: ") and "\n" not in said


def test_builtin(config: Make) -> None:
    made = config(path="builtin:sms", text=(), label=None, test="test")
    found, task = sources.resolve(made), Classification()
    assert (task.input_columns(made), task.target_columns(made)) == (["text"], ["label"])
    assert texts(found.train) == [text for text, _ in builtin.sms("train")]
    assert texts(only(found.validation)) == [text for text, _ in builtin.sms("validation")]
    assert texts(found.test) == [text for text, _ in builtin.sms("test")]


@pytest.mark.parametrize(
    ("kind", "keys", "said"),
    [
        (ConfigError, {}, "data.train: no training data is named"),
        (ConfigError, {"train": "train"}, "data.train: 'train' is no file"),
        (ConfigError, {"path": "builtin:smss"}, "there is builtin:sms"),
        (ConfigError, {"path": "builtin:sms", "revision": "v1"}, "data.revision"),
        (DataError, {"path": "builtin:sms", "train": "tran"}, "has no split 'tran'"),
        (DataError, {"path": "./no/such/folder"}, "no such folder"),
        (DataError, {"train": "no/such.csv"}, "no/such.csv: no such file"),
        (DataError, {"train": "no/such*"}, "no/such* matches no file"),
    ],
)
def test_faults(config: Make, kind: type[Exception], keys: dict[str, Any], said: str) -> None:
    assert said in fault(kind, config(**keys))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"text": ()}, "data.text: name the one or two columns"),
        ({"text": ("a", "b", "c")}, "data.text: name the one or two columns"),
        ({"text": ("a", "a")}, "data.text: name the one or two columns"),
        ({"label": None}, "data.label: name the one column"),
        ({"label": ("a", "b")}, "data.label: name the one column"),
        ({"label": "text"}, "named twice"),
    ],
)
def test_faulty_columns(tmp_path: Path, config: Make, tokenizer: Any, keys: dict[str, Any], said: str) -> None:
    made, task = config(train=csv(tmp_path / "a.csv", "one", "two"), **keys), Classification()
    task.begin(made, tokenizer, 8)
    with pytest.raises(ConfigError, match=said):
        tokens.load(made, sources.resolve(made), task)


def test_fingerprint_follows_the_content(tmp_path: Path, config: Make) -> None:
    def mark(name: str) -> str:
        return splits.FileSplit([tmp_path / name]).fingerprint()

    csv(tmp_path / "a.csv", "one"), csv(tmp_path / "b.csv", "one"), csv(tmp_path / "c.csv", "two")
    assert mark("a.csv") == mark("b.csv") != mark("c.csv")
    (tmp_path / "c.csv").write_text((tmp_path / "a.csv").read_text())
    os.utime(tmp_path / "c.csv", ns=(1, 1))
    assert mark("c.csv") == mark("a.csv")
    rows = datasets.Dataset.from_dict({"text": ["one"]})
    assert splits.DatasetSplit(rows, "x").fingerprint() == splits.DatasetSplit(rows, "y").fingerprint()
    assert (
        splits.DatasetSplit(rows.add_column("n", [1]), "x").fingerprint()
        != splits.DatasetSplit(rows, "x").fingerprint()
    )


def test_a_dataset_that_a_program_made_is_known_by_its_content() -> None:
    def mark(rows: datasets.Dataset, name: str = "train") -> str:
        return splits.DatasetSplit(rows, name, made=True).fingerprint()

    def make(**columns: list[Any]) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"text": ["one", "two"], "label": [0, 1], **columns})

    base, rows = mark(make()), datasets.Dataset.from_list([{"text": "one", "label": 0}, {"text": "two", "label": 1}])
    filtered = make(text=["one", "one"]).map(lambda row, at: {"text": ["one", "two"][at]}, with_indices=True)
    assert mark(make()) == mark(rows) == mark(filtered) == mark(make(), "other") == base, "however it came about"
    assert mark(make().with_format("numpy")) == base
    others = [
        make(text=["one", "tow"]),
        make(label=[0, 0]),
        make(more=[1, 2]),
        make().select([1, 0]),
        make().select([0]),
        make().cast_column("label", datasets.ClassLabel(names=["no", "yes"])),
        make(text=["one", "\U0001f600"]),
    ]
    assert len({base, *map(mark, others)}) == len(others) + 1


def test_lists_of_named_classes_keep_their_names() -> None:
    kinds = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.List(datasets.ClassLabel(names=["joy", "fear", "awe"]))}
    )
    rows = datasets.Dataset.from_dict({"text": ["one"], "label": [[0, 2]]}, features=kinds)
    assert splits.DatasetSplit(rows, "train").label_names == {"label": ["joy", "fear", "awe"]}


def test_jsonl_split(tmp_path: Path, config: Make) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "one", "label": True}))
    assert texts(sources.resolve(config(train=tmp_path / "a.jsonl")).train) == ["one"]

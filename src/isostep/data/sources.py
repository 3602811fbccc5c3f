"""From the `data` section of a configuration to splits: files, a local folder, a hub dataset or built-in data."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from isostep.data import builtin, files
from isostep.data.splits import BuiltinSplit, DatasetSplit, FileSplit, Split
from isostep.errors import ConfigError, DataError

if TYPE_CHECKING:
    from isostep.config import Config

VALIDATION_NAMES = ("validation", "valid", "val", "dev")  # of a split that serves as validation unasked, best first


@dataclass(frozen=True)
class Sources:
    """The splits of a configuration."""

    train: Split
    validation: dict[str, Split]
    """By name; the only one, where there is no more, is called "". Empty: to be split off from train."""
    test: Split | None

    def splits(self) -> dict[str, Split]:
        """All that there are, train first: train, validation or validation.NAME, test."""
        made = {"train": self.train}
        made |= {f"validation.{name}" if name else "validation": split for name, split in self.validation.items()}
        return made | ({"test": self.test} if self.test is not None else {})


def resolve(config: Config) -> Sources:
    """The sources that config.data names.

    Without data.path each of train, validation and test is a file or a glob. With it they may be names of its splits:
    train is "train" when null, validation a split of one of VALIDATION_NAMES if there is one, test none.
    Raises ConfigError where the keys don't fit together, DataError where a file, folder or dataset can't be had.
    """
    data = config.data
    if data.path is None and data.train is None:
        raise ConfigError("data.train: no training data is named; give a file there, or a dataset in data.path")
    collection = _collection(data.path, data.name, data.revision) if data.path is not None else None

    def find(key: str, value: str | None, name: str) -> Split | None:
        if value is not None and (collection is None or _known_ending(value)):
            return _files(key, value)
        if collection is None:
            return None
        return collection.get(value, key) if value is not None else collection.default(name)

    train = find("data.train", data.train, "train")
    assert train is not None
    asked = data.validation if isinstance(data.validation, dict) else {"": data.validation}
    sets = {
        name: find(f"data.validation.{name}" if name else "data.validation", value, "validation")
        for name, value in asked.items()
    }
    validation = {name: split for name, split in sets.items() if split is not None}
    return Sources(train, validation, find("data.test", data.test, "test"))


def _known_ending(value: str) -> bool:
    return Path(value).suffix.lower().lstrip(".") in files.FORMATS


def _files(key: str, value: str) -> FileSplit:
    if not (Path(value).suffix or glob.has_magic(value) or Path(value).expanduser().exists()):
        raise ConfigError(
            f"{key}: {value!r} is no file (endings: {', '.join(files.FORMATS)}), and as the name of a split it needs "
            "data.path, the dataset or folder that it belongs to"
        )
    return FileSplit(files.expand(value))


class _Collection(Protocol):
    """What data.path names: splits by name."""

    def get(self, split: str, key: str) -> Split: ...

    def default(self, name: str) -> Split | None: ...


def _collection(path: str, name: str | None, revision: str | None) -> _Collection:
    local = path.startswith("builtin:") or Path(path).expanduser().exists()
    if local and (name or revision):
        raise ConfigError(f"data.name, data.revision: they belong to a dataset of the hub, and data.path is {path}")
    if path.startswith("builtin:"):
        if path != "builtin:sms":
            raise ConfigError(f"data.path: {path!r} is unknown; there is builtin:sms")
        return _Named(path, {split: BuiltinSplit(split) for split in builtin.ROWS})
    folder = Path(path).expanduser()
    if folder.is_dir():
        if any((folder / mark).is_file() for mark in ("dataset_dict.json", "state.json")):
            return _saved(path, folder)
        return _Folder(path, folder)
    if folder.exists():
        raise ConfigError(f"data.path: {path} is a file; name it in data.train")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise DataError(f"data.path: {path}: no such folder (looked from {Path.cwd()})")
    return _hub(path, name, revision)


def _no_split(key: str, split: str, path: str, there: Sequence[str]) -> DataError:
    return DataError(f"{key}: {path} has no split {split!r}; it has: {', '.join(there) or 'none'}")


@dataclass(frozen=True)
class _Named:
    path: str
    splits: dict[str, Split]

    def get(self, split: str, key: str) -> Split:
        if split not in self.splits:
            raise _no_split(key, split, self.path, list(self.splits))
        return self.splits[split]

    def default(self, name: str) -> Split | None:
        if name == "train":
            return self.get("train", "data.train")
        names = VALIDATION_NAMES if name == "validation" else ()
        return next((self.splits[alias] for alias in names if alias in self.splits), None)


@dataclass(frozen=True)
class _Folder:
    """A folder of files, each split one or several of one format: `train.csv`, `train-00001.parquet`, `val_2.jsonl`."""

    path: str
    folder: Path

    def find(self, split: str) -> FileSplit | None:
        named = re.compile(re.escape(split) + r"(?![a-z]).*", re.IGNORECASE)
        paths = [
            p for p in sorted(self.folder.iterdir()) if p.is_file() and _known_ending(p.name) and named.match(p.name)
        ]
        if len({path.suffix.lower() for path in paths}) > 1:
            listed = ", ".join(path.name for path in paths)
            raise DataError(
                f"data.path: {self.path} holds {split!r} in several formats: {listed}; name the files of one"
            )
        return FileSplit(paths) if paths else None

    def get(self, split: str, key: str) -> Split:
        found = self.find(split)
        if found is None:
            listed = sorted(path.name for path in self.folder.iterdir())
            raise DataError(
                f"{key}: the folder {self.path} holds no file {split}*.{{{','.join(files.FORMATS)}}}; "
                f"it holds: {', '.join(listed[:10]) or 'nothing'}{', ...' if len(listed) > 10 else ''}"
            )
        return found

    def default(self, name: str) -> Split | None:
        if name == "train":
            return self.get("train", "data.train")
        names = VALIDATION_NAMES if name == "validation" else ()
        return next((found for alias in names if (found := self.find(alias)) is not None), None)


def _saved(path: str, folder: Path) -> _Named:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(folder))
    except Exception as error:  # whatever the library meets in the folder: the dataset can't be had
        raise DataError(f"data.path: {path} can't be loaded: {_first_line(error)}") from error
    parts = loaded if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
    return _Named(path, {str(name): DatasetSplit(part, f"{path}, {name}") for name, part in parts.items()})


@dataclass(frozen=True)
class _Hub(_Named):
    name: str | None
    revision: str | None

    def get(self, split: str, key: str) -> Split:
        if (
            "[" in split or "+" in split
        ):  # a slice such as train[:10%], or a sum, in the datasets library's own notation
            return DatasetSplit(_load(self.path, self.name, self.revision, split), f"{self.path}, {split}")
        return super().get(split, key)


def _hub(path: str, name: str | None, revision: str | None) -> _Hub:
    parts = _load(path, name, revision, None)
    splits: dict[str, Split] = {str(key): DatasetSplit(part, f"{path}, {key}") for key, part in parts.items()}
    return _Hub(path, splits, name, revision)


def _load(path: str, name: str | None, revision: str | None, split: str | None) -> Any:
    import datasets

    try:
        return datasets.load_dataset(path, name, revision=revision, split=split)
    except Exception as error:  # the network, the hub, its cache, a missing name: the dataset can't be had
        which = path + (f", {name}" if name else "") + (f" at {revision}" if revision else "")
        raise DataError(f"data.path: the dataset {which} can't be had: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"

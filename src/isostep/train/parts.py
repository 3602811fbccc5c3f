"""What a program hands to `fit` in place of what the configuration names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from torch import nn

from isostep.data.labels import Labels
from isostep.data.sources import Sources
from isostep.data.splits import DatasetSplit
from isostep.data.tokens import TokenizedData, lengths, with_validation
from isostep.errors import ConfigError, DataError
from isostep.models.load import load_model, with_trainable_fp32
from isostep.tasks import Task

if TYPE_CHECKING:
    import datasets

    from isostep.config import Config

ModelFactory = Callable[[Task], nn.Module]
OptimizerFactory = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]
Metrics = Callable[[Any, Any], dict[str, float]]


@dataclass(frozen=True)
class Parts:
    """Everything of a run that can be another's than the configuration's; None: the configuration's."""

    task: Task
    model: nn.Module | ModelFactory | None = None
    train: datasets.Dataset | None = None
    validation: datasets.Dataset | Mapping[str, datasets.Dataset] | None = None
    metrics: Metrics | None = None
    optimizer: OptimizerFactory | None = None
    scheduler: SchedulerFactory | None = None

    def __post_init__(self) -> None:
        if self.validation is not None and self.train is None:
            raise ConfigError("fit: validation is handed in without train; hand in both, or name both in data")
        if isinstance(self.validation, Mapping):
            odd = [name for name in self.validation if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name == "train"]
            if odd or not self.validation:
                raise ConfigError(
                    f"fit: validation sets are named by letters, digits, _ and -, and not train (got {odd})"
                )

    def metric(self, named: str) -> str:
        """eval.metric as it stands in the record: of several sets that were handed in the first one's."""
        name = named.removeprefix("eval/")
        several = isinstance(self.validation, Mapping) and "/" not in name
        return f"eval/{next(iter(self.validation or ()))}/{name}" if several else named

    def make_model(self, config: Config) -> nn.Module:
        """The model of the run, on the CPU, in train mode; the task knows its tokenizer and classes by now.

        Raises ConfigError for a model that can't be had or is none.
        """
        if self.model is None:
            return load_model(config, self.task, self.task.tokenizer)
        made = self.model if isinstance(self.model, nn.Module) else self.model(self.task)
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"fit: the model is {type(made).__name__}, not a torch Module or what makes one of a task"
            )
        return with_trainable_fp32(made)

    def sets(self) -> dict[str, datasets.Dataset]:
        """All rows that were handed in, named as they are said: train, validation or validation.NAME."""
        assert self.train is not None
        made = {"train": self.train}
        if isinstance(self.validation, Mapping):
            return made | {f"validation.{name}": rows for name, rows in self.validation.items()}
        return made if self.validation is None else made | {"validation": self.validation}

    def sources(self) -> Sources:
        """Rows that were handed in as texts."""
        made = {name: DatasetSplit(rows, name, made=True) for name, rows in self.sets().items()}
        train = made.pop("train")
        return Sources(train, {name.removeprefix("validation").lstrip("."): rows for name, rows in made.items()}, None)

    def tokenised(self) -> TokenizedData:
        """Rows that were handed in as tokens: input_ids, labels and what else the task's collation takes.

        Raises DataError where a set is empty, a column is missing, tokens are none or too many, or labels are not what
        the task takes.
        """
        made = {name: _plain(rows) for name, rows in self.sets().items()}
        for name, rows in made.items():
            _check_tokens(name, rows, None if self.model else self.task.max_length)
        train = made["train"]
        self.task.labels = _classes(self.task, train)
        for name, rows in made.items():
            self.task.check_tokenised(name, rows)
        del made["train"]
        sets = {"eval" + name.removeprefix("validation").replace(".", "/", 1): rows for name, rows in made.items()}
        train, sets = with_validation(self.task.config, self.task, train, sets)
        return TokenizedData(train, sets, None, self.task.labels, {})


def _check_tokens(name: str, rows: datasets.Dataset, longest: int | None) -> None:
    """`longest`: the most tokens that the configured model takes; None: what it takes is not known."""
    if not len(rows):
        raise DataError(f"{name} is empty: it holds no rows")
    if missing := {"input_ids", "labels"} - set(rows.column_names):
        raise DataError(f"{name}: it has no column {sorted(missing)[0]!r}, which tokenised rows need")
    kind = rows.data.column("input_ids").type
    if not pa.types.is_nested(kind) or not pa.types.is_integer(kind.value_type):
        raise DataError(f"{name}: the column 'input_ids' must hold lists of token numbers (it holds {kind})")
    sizes = lengths(rows)
    if not sizes.min():
        raise DataError(f"{name}, row {sizes.argmin() + 1}: 'input_ids' is empty; give it a token at least")
    if longest is not None and sizes.max() > longest:
        raise DataError(f"{name}, row {sizes.argmax() + 1}: {sizes.max()} tokens, and the model takes {longest}")


def _plain(rows: datasets.Dataset) -> datasets.Dataset:
    """Without a selection and a format, which would change what a row is."""
    return rows.with_format(None).flatten_indices()


def _classes(task: Task, rows: datasets.Dataset) -> Labels | None:
    names = getattr(rows.features["labels"], "names", None)
    if names is not None:
        return Labels(list(range(len(names))), list(names))
    return task.survey_tokenised(rows)

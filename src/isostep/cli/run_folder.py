"""What the commands read from a run folder: its configuration, and where its models lie."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isostep.errors import ConfigError

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.tasks import Task


def read_config(run_dir: Path) -> Config:
    """The configuration in config.yaml, as it was stored.

    Not checked as a whole, since what was handed in from Python is not in it. Raises ConfigError where there is none.
    """
    from isostep import config
    from isostep.config.syntax import read

    path = run_dir / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run_dir} is no run folder: it holds no config.yaml")
    tree, _ = read(path)
    try:
        sections: dict[str, Any] = {
            name: None if keys is None else _section(config, name, keys) for name, keys in tree.items()
        }
        return config.Config(**sections)
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what this version writes for a run: {error}") from error


def _section(module: Any, name: str, keys: Mapping[str, Any]) -> Any:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    return getattr(module, name.capitalize())(**values)


def check_answers_are_known(run_dir: Path) -> None:
    """Raise ConfigError where the run's task makes answers of rows in a way that only its program knows."""
    try:
        task = json.loads((run_dir / "env.json").read_text(encoding="utf-8"))["task"]
        name, replaced = task["name"], ", ".join(task["replaces"])
    except (OSError, ValueError, LookupError, TypeError):  # no env.json, or an older one
        return
    if replaced:
        raise ConfigError(
            f"{run_dir} was trained with a task of its own, {name}, which replaces {replaced}; predict with it from "
            "Python: isostep.cli.predict.predict(run_dir, source, output, task=...)"
        )


def exported(run_dir: Path) -> Path | None:
    """best/ of the run, else final/, else None."""
    return next((run_dir / name for name in ("best", "final") if (run_dir / name).is_dir()), None)


def task_of(folder: Path, config: Config) -> Task:
    """The task of the exported model in `folder`, as its head says, else as `config` does.

    They differ where `fit` was handed another task than the one that task.kind names.
    """
    from isostep import tasks

    try:
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        architecture, problem = str(shape["architectures"]), shape.get("problem_type")
    except (ValueError, LookupError, TypeError):
        return tasks.make_task(config)  # loading it tells what is wrong
    if tasks.TokenClassification.auto_class.removeprefix("AutoModel") in architecture:
        return tasks.TokenClassification()
    kinds: dict[str, type[tasks.Classification | tasks.MultiLabel | tasks.Regression]] = {
        "single_label_classification": tasks.Classification,
        "multi_label_classification": tasks.MultiLabel,
        "regression": tasks.Regression,
    }
    return kinds[problem]() if problem in kinds else tasks.make_task(config)

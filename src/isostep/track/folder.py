"""May this run use this folder? What an earlier start left there, and what may have changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from isostep.checkpoint import store
from isostep.config.syntax import dump
from isostep.durable import write_atomically
from isostep.errors import ConfigError
from isostep.track.record import read_rows
from isostep.track.redaction import redact

if TYPE_CHECKING:
    from isostep.config import Config

STOP_FILE = "STOP"
LENGTH_KEYS = ("train.epochs", "train.max_steps")
FREE_SECTIONS = ("eval", "checkpoint", "track")
FREE_KEYS = frozenset({"run.name", "run.root", "run.resume", "run.timeout", "data.workers", "batch.tokens_per_device"})


class Claim(NamedTuple):
    """What is to be done in a run folder."""

    finished: bool
    """The same run has completed here: nothing is left to do."""
    restarts: int
    """How often the run was started again, this start included."""


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted key, old value, new value) of every difference that changes what a run computes."""
    flat_before, flat_after = _flat(before), _flat(after)
    return [
        (key, flat_before.get(key), flat_after.get(key))
        for key in sorted(flat_before.keys() | flat_after.keys())
        if flat_before.get(key) != flat_after.get(key)
        and key not in FREE_KEYS
        and key.split(".")[0] not in FREE_SECTIONS
    ]


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def claim(folder: Path, config: Config) -> Claim:
    """Decide what a start in `folder` means.

    A folder holds a run once a step was recorded or saved in it: a start that failed on its input may be corrected
    freely. A run may be made longer; whether it would be is known when the data is (`store_config` comes after that).

    Raises ConfigError where another run lives there (resume: never), or the same with another configuration or a
    shorter end; then nothing in the folder has been touched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP_FILE).unlink(missing_ok=True)
    status = _read_json(folder / "status.json")
    resume = config.run.resume
    if not holds_a_run(folder):
        origin = Path(resume).parent.parent
        if resume not in ("auto", "never") and (origin / "config.yaml").is_file():
            _refuse_changes(origin, changed_keys(stored_config(origin), redact(config.to_dict())))
        return Claim(finished=False, restarts=0)
    if resume == "never":
        raise ConfigError(f"run.resume is never, but {folder} holds a run already; choose another --run.name")
    before = stored_config(folder)
    changes = changed_keys(before, redact(config.to_dict()))
    _refuse_changes(folder, changes)
    resumed = before.get("run", {}).get("resume")
    if resume == "auto":
        _check_length(folder, config)
    restarts = int(status.get("restarts", 0))
    # a checkpoint asked for by path is gone back to once: the same command again finds the run that has gone on from it
    if status.get("state") == "completed" and not changes and resume in ("auto", resumed):
        return Claim(finished=True, restarts=restarts)
    return Claim(finished=False, restarts=restarts + 1)


def _refuse_changes(folder: Path, changes: list[tuple[str, Any, Any]]) -> None:
    """Raise ConfigError for changes that a run in `folder` can't take: all but its length."""
    listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, old, new in changes if key not in LENGTH_KEYS)
    if listed:
        raise ConfigError(f"{folder} holds a run with another configuration: {listed}\nchoose another --run.name")


def _check_length(folder: Path, config: Config) -> None:
    """Raise ConfigError where the newest checkpoint is of a longer run than this configuration's.

    Steps in an epoch are known here once one has passed; until then the data have to tell, and the same check follows.
    """
    newest = next(iter(store.checkpoints(folder / "checkpoints")), None)
    past = _read_json(newest / "state.json") if newest is not None else {}
    position = past.get("train", {})
    windows = (position["step"] - position["window"]) // position["epoch"] if position.get("epoch") else None
    total = config.train.max_steps or (config.train.epochs * windows if windows is not None else None)
    if total is not None and "total_steps" in past:
        refuse_shorter(config.run.name, past["total_steps"], total)


def refuse_shorter(name: str, before: int, after: int) -> None:
    """Raise ConfigError where a run of `before` steps is to have `after`, which are fewer."""
    if after < before:
        raise ConfigError(f"run {name} was to have {before} steps; train.epochs or train.max_steps now say {after}: "
                          "a run can be made longer only\nchoose another --run.name")  # fmt: skip


def holds_a_run(folder: Path) -> bool:
    """Whether a step was recorded or saved there, or a model exported."""
    if (folder / "best").exists() or (folder / "final").exists():
        return True
    if any((folder / "checkpoints").glob("step-*/manifest.json")):
        return True
    return any(row["step"] > 0 for row in read_rows(folder / "metrics.jsonl"))


def stored_config(folder: Path) -> dict[str, Any]:
    """The configuration of the run in `folder`. Raises ConfigError where config.yaml can't be read."""
    path = folder / "config.yaml"
    try:
        stored = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        stored = None
    if not isinstance(stored, dict):
        raise ConfigError(f"{path} can't be read, so nobody can tell whether the run there is this one\n"
                          "put it back, or choose another --run.name")  # fmt: skip
    return stored


def store_config(folder: Path, config: Config) -> None:
    """Write config.yaml: what the next start is compared with."""
    write_atomically(folder / "config.yaml", dump(redact(config.to_dict())))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

"""May this run use this folder? What an earlier start left there, and what may have changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from isostep.durable import write_atomically
from isostep.errors import ConfigError
from isostep.track.record import read_rows

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

    Raises ConfigError where another run lives there (resume: never), or the same with another configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STOP_FILE).unlink(missing_ok=True)
    status = _read_json(folder / "status.json")
    if not holds_a_run(folder):
        return Claim(finished=False, restarts=0)
    if config.run.resume == "never":
        raise ConfigError(f"run.resume is never, but {folder} holds a run already; choose another --run.name")
    before = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    changes = changed_keys(before, config.to_dict())
    other = [change for change in changes if change[0] not in LENGTH_KEYS]
    if other:
        listed = "; ".join(f"{key} was {old!r}, is {new!r}" for key, old, new in other)
        raise ConfigError(f"{folder} holds a run with another configuration: {listed}\nchoose another --run.name")
    restarts = int(status.get("restarts", 0))
    if status.get("state") == "completed" and not changes:
        return Claim(finished=True, restarts=restarts)
    return Claim(finished=False, restarts=restarts + 1)


def holds_a_run(folder: Path) -> bool:
    """Whether a step was recorded or saved there, or a model exported."""
    if (folder / "best").exists() or (folder / "final").exists():
        return True
    if any((folder / "checkpoints").glob("step-*/manifest.json")):
        return True
    return any(row["step"] > 0 for row in read_rows(folder / "metrics.jsonl"))


def store_config(folder: Path, config: Config) -> None:
    """Write config.yaml: what the next start is compared with."""
    write_atomically(folder / "config.yaml", config.to_yaml())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

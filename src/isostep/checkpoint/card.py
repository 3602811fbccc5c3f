"""The model card (README.md) of an exported model, with the metadata that the Hub reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from isostep.config.syntax import dump
from isostep.track.redaction import redact

if TYPE_CHECKING:
    from isostep.config import Config

HUB_METRICS = {
    "accuracy": "accuracy",
    "f1": "f1",
    "precision": "precision",
    "recall": "recall",
    "mcc": "matthews_correlation",
}


def model_card(
    config: Config, labels: Sequence[str], results: Mapping[str, float], step: int, command: Sequence[str]
) -> str:
    """A short card for a classifier.

    `labels` are their names, `results` the evaluation's values by their recorded names ("eval/accuracy"), `step` the
    optimizer step of these weights, `command` the program and its arguments. Paths are written relative to the working
    folder, or as bare names where they lie elsewhere: a card is made to be shared.
    """
    settings = redact(config.to_dict())
    shown = portable(settings)
    base, name = shown["model"]["path"], shown["run"]["name"]
    lines = [
        "---",
        yaml.safe_dump(_metadata(settings, results), sort_keys=False, allow_unicode=True).rstrip(),
        "---",
        "",
        f"# {name}",
        "",
        f"A text classifier, fine-tuned with isostep from `{base}`; the weights after optimizer step {step}.",
        "",
        f"- Labels: {', '.join(f'`{label}`' for label in labels)}",
        f"- Data: {_data(shown['data'])}",
        "",
        "## Results",
        "",
        *_table(results),
        "",
        "## Made by",
        "",
        "```bash",
        shlex.join(portable(redact(list(command)))),
        "```",
        "",
        "## Configuration",
        "",
        "```yaml",
        dump(shown).rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def portable(value: Any) -> Any:
    """The same value with every absolute path in it made relative or bare."""
    if isinstance(value, Mapping):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    if not isinstance(value, str):
        return value
    option, equals, rest = value.partition("=")  # --data.train=/somewhere/train.csv
    if equals and option.startswith("--"):
        return option + equals + portable(rest)
    path = Path(value).expanduser() if value.startswith("~/") else Path(value)
    if not path.is_absolute():
        return value
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def _metadata(settings: Mapping[str, Any], results: Mapping[str, float]) -> dict[str, Any]:
    made: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-classification", "tags": ["isostep"]}
    if _is_hub_id(settings["model"]["path"]):
        made["base_model"] = settings["model"]["path"]
    if _is_hub_id(settings["data"].get("path")):
        made["datasets"] = [settings["data"]["path"]]
    names = {key.partition("/")[2] for key in results}
    metrics = [hub for name, hub in HUB_METRICS.items() if name in names]
    return {**made, "metrics": metrics} if metrics else made


def _is_hub_id(path: str | None) -> bool:
    return bool(path) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", path or "") is not None and not Path(path or "").exists()


def _data(data: Mapping[str, Any]) -> str:
    source = data.get("path") or data.get("train")
    columns = data.get("text") or []
    said = ", ".join(f"`{column}`" for column in ([columns] if isinstance(columns, str) else columns))
    return f"`{source}`, text from {said}" if said else f"`{source}`"


def _table(results: Mapping[str, float]) -> list[str]:
    if not results:
        return ["Not evaluated."]
    return ["| metric | value |", "|---|---|", *(f"| {key} | {value:.6g} |" for key, value in results.items())]

"""The model card (README.md) of an exported model, with the metadata that the Hub reads."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isostep.config.syntax import dump
from isostep.data.files import FORMATS
from isostep.track.redaction import redact

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCardData

    from isostep.config import Config
    from isostep.tasks import Task

# The Hub's name of each metric that it knows; those ending in an average are its plain ones.
HUB_METRICS = {
    "accuracy": "accuracy",
    "f1": "f1",
    "precision": "precision",
    "recall": "recall",
    "mcc": "matthews_correlation",
    "mse": "mse",
    "mae": "mae",
    "r2": "r_squared",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
AVERAGES = ("micro", "macro")
PIPELINES = {
    "AutoModelForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
}
OF_THE_BASE = ("license", "license_name", "license_link", "language")


def model_card(config: Config, task: Task, results: Mapping[str, float], step: int, command: Sequence[str]) -> str:
    """A short card for a model of `task`.

    `results` are the values of evaluation and test by their recorded names ("eval/accuracy"), `step` the optimizer step
    of these weights, `command` the program and its arguments. Paths are written relative to the working folder, or as
    bare names where they lie elsewhere: a card is made to be shared. Licence and language are those of the base model's
    own card, where that is at hand.
    """
    settings = redact(config.to_dict())
    shown = portable(settings)
    base, name = shown["model"]["path"], shown["run"]["name"]
    lines = [
        "---",
        _metadata(settings, task, results).to_yaml(),
        "---",
        "",
        f"# {name}",
        "",
        f"A text model, fine-tuned with isostep from `{base}`; the weights after optimizer step {step}.",
        "",
        *([f"- Labels: {', '.join(f'`{label}`' for label in task.labels.names)}"] if task.labels is not None else []),
        f"- Data: {_data(shown['data'])}",
        f"- Made with: {', '.join(f'{name} {version(name)}' for name in ('isostep', 'transformers', 'torch'))}",
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


def _metadata(settings: Mapping[str, Any], task: Task, results: Mapping[str, float]) -> ModelCardData:
    """What the Hub reads: https://github.com/huggingface/hub-docs/blob/main/modelcard.md."""
    from huggingface_hub import ModelCardData

    model, data = settings["model"], settings["data"]
    pipeline = PIPELINES.get(task.auto_class)
    measured = list(_measured(data, pipeline, results)) if pipeline is not None else []
    known: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": pipeline,
        "tags": ["isostep"],
        "base_model": model["path"] if _is_hub_id(model["path"]) else None,
        "datasets": [data["path"]] if _is_hub_id(data["path"]) else None,
        "metrics": list(dict.fromkeys(entry.metric_type for entry in measured)) or None,
        **_of_the_base(model),
    }
    return ModelCardData(model_name=settings["run"]["name"], eval_results=measured or None, **known)


def _measured(data: Mapping[str, Any], pipeline: str, results: Mapping[str, float]) -> Iterator[EvalResult]:
    """An entry of the model index for each value of a metric that the Hub knows."""
    from huggingface_hub import EvalResult

    sets = data["validation"] if isinstance(data["validation"], dict) else {"": data["validation"]}
    named = {f"eval/{name}" if name else "eval": ("validation", value) for name, value in sets.items()}
    named["test"] = ("test", data["test"])
    for key, value in results.items():
        where, _, name = key.rpartition("/")
        plain, _, average = name.rpartition("_")
        known = HUB_METRICS.get(plain if average in AVERAGES else name)
        if known is None or where not in named or not math.isfinite(value):
            continue
        yield EvalResult(
            task_type=pipeline,
            metric_type=known,
            metric_name=name,
            metric_args={"average": average} if average in AVERAGES else None,
            metric_value=float(value),
            **_dataset(data, *named[where]),
        )


def _dataset(data: Mapping[str, Any], role: str, value: str | None) -> dict[str, Any]:
    """The dataset of an entry, whose split is `value`: a split's name, a file, or what is split off from training."""
    if value is not None and Path(value).suffix.lower().lstrip(".") in FORMATS:
        name = portable(value)
        return {"dataset_name": name, "dataset_type": name, "dataset_split": role}
    source = data["path"] or data["train"] or "handed in"
    name = portable(source)
    split = {"dataset_name": name, "dataset_type": name, "dataset_split": value or role}
    return {**split, "dataset_config": data["name"], "dataset_revision": data["revision"]}


def _of_the_base(model: Mapping[str, Any]) -> dict[str, Any]:
    """Licence and language in the base model's own card, in its folder or the Hub's cache; nothing is downloaded."""
    from huggingface_hub import ModelCard, try_to_load_from_cache

    path = Path(model["path"]) / "README.md"
    if _is_hub_id(model["path"]):
        cached = try_to_load_from_cache(model["path"], "README.md", revision=model["revision"])
        path = Path(cached) if isinstance(cached, str) else path
    if not path.is_file():
        return {}
    try:
        found = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # whatever stands there: it is another's text, and no metadata
        return {}
    return {key: found[key] for key in OF_THE_BASE if key in found}


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

"""What a configuration may not say although each key by itself is right, and what this version can't do yet."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from isostep.config.keys import show
from isostep.config.schema import Config

# Metrics of each kind of task, and the direction in which they are better.
METRICS = {
    "classification": {
        "loss": "min", "accuracy": "max", "f1": "max", "precision": "max", "recall": "max", "mcc": "max",
        "f1_macro": "max", "precision_macro": "max", "recall_macro": "max",
    },
}  # fmt: skip
BUILTIN = {"data.path": "builtin:sms", "model.path": "builtin:tiny"}
CAUSAL = ("prompt", "completion", "messages", "train_on", "drop_empty")
LONGEST_NAME = 200  # bytes; file systems take 255, and temporary names are longer than the run's


@dataclass(frozen=True)
class Problem:
    """`key`: the one to change; `involves`: others whose values the finding rests on."""

    key: str
    text: str
    involves: tuple[str, ...] = ()


def check(config: Config) -> Iterator[Problem]:
    """All problems of a configuration whose values each have the right type."""
    for part in CHECKS:
        yield from part(config)


def _run(config: Config) -> Iterator[Problem]:
    name = config.run.name
    plain = name.isprintable() and name == name.strip() and not name.startswith(".") and not set(name) & set("/\\")
    if not plain or len(name.encode("utf-8", "replace")) > LONGEST_NAME:
        yield Problem(
            "run.name",
            f"must be a plain folder name: printable, no '/' or '\\', no leading '.', no spaces around it, "
            f"at most {LONGEST_NAME} bytes (got {show(name)})",
        )


def _task(config: Config) -> Iterator[Problem]:
    if config.task.kind != "classification":
        yield Problem("task.kind", f"{config.task.kind} is not built yet: classification is")
    if config.task.multi_label:
        yield Problem("task.multi_label", "true is not built yet: one label per example is")
    if config.task.kind != "causal_lm":
        for leaf in CAUSAL:
            given = getattr(config.data, leaf)
            if given != getattr(type(config.data), leaf):
                text = f"belongs to task.kind causal_lm, not to {config.task.kind} (got {show(given)})"
                yield Problem(f"data.{leaf}", text, ("task.kind",))


def _data(config: Config) -> Iterator[Problem]:
    data = config.data
    if data.path is None and data.train is None:
        yield Problem("data.train", "is needed: a file, or a split of the dataset in data.path", ("data.path",))
    if len(data.text) > 2:
        yield Problem("data.text", f"takes one column or two (got {len(data.text)}: {show(data.text)})")
    builtin = data.path is not None and data.path.startswith("builtin:")
    if config.task.kind == "causal_lm" or builtin:
        return
    if not data.text:
        yield Problem("data.text", "is needed: the column of the text, or two columns", ("data.path", "task.kind"))
    labels = (data.label,) if isinstance(data.label, str) else data.label or ()
    if not labels:
        yield Problem("data.label", "is needed: the column of the label", ("data.path", "task.kind"))
    if len(labels) > 1 and not config.task.multi_label:
        text = f"several columns need task.multi_label: true (got {show(labels)})"
        yield Problem("data.label", text, ("task.multi_label",))
    for column in labels:
        if column in data.text:
            yield Problem("data.label", f"column {show(column)} is a text of data.text, too", ("data.text",))


def _builtin(config: Config) -> Iterator[Problem]:
    for key, known in BUILTIN.items():
        path = config.data.path if key == "data.path" else config.model.path
        if path is not None and path.startswith("builtin:") and path != known:
            yield Problem(key, f"is not built in (got {show(path)}); did you mean {known}?")


def _model(config: Config) -> Iterator[Problem]:
    if config.model.attention == "varlen":
        yield Problem("model.attention", "varlen is not built yet: auto, sdpa or eager")
    if config.lora is not None:
        yield Problem("lora", "is not built yet: leave it out, or null")


def _optim(config: Config) -> Iterator[Problem]:
    warmup = config.optim.warmup
    if warmup > 1 and not warmup.is_integer():
        yield Problem("optim.warmup", f"counts steps from 1 on and must then be whole (got {show(warmup)})")


def _eval(config: Config) -> Iterator[Problem]:
    known = METRICS.get(config.task.kind)
    if known is None:
        return
    metric = config.eval.metric.removeprefix("eval/")
    if metric not in known:
        text = f"must be one of {', '.join(known)} (got {show(metric)})"
        starts = [name for name in known if name.startswith(metric.lower())]
        if near := starts or difflib.get_close_matches(metric.lower(), known, n=1):
            text += f"; did you mean {near[0]}?"
        yield Problem("eval.metric", text, ("task.kind",))
    elif config.eval.mode != known[metric]:
        better = "lower" if known[metric] == "min" else "higher"
        text = f"{metric} is better {better}: {known[metric]} or null"
        yield Problem("eval.mode", f"{text} (got {show(config.eval.mode)})", ("eval.metric", "task.kind"))


CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (_run, _task, _data, _builtin, _model, _optim, _eval)

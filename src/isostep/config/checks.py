"""What a configuration may not say although each key by itself is right, and what this version can't do yet."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from isostep.config.keys import show
from isostep.config.schema import LOWER_IS_BETTER, Config, HandedIn

# Metrics of each kind of task; multi_label is task.multi_label's.
METRICS = {
    "classification": (
        "loss", "accuracy", "f1", "precision", "recall", "mcc", "f1_macro", "precision_macro", "recall_macro",
    ),
    "multi_label": (
        *("loss", "accuracy", "f1_micro", "f1_macro"),
        *("precision_micro", "recall_micro", "precision_macro", "recall_macro"),
    ),
    "regression": ("loss", "mse", "rmse", "mae", "r2", "pearson", "spearman"),
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


def check(config: Config, handed_in: Collection[HandedIn]) -> Iterator[Problem]:
    """All problems of a configuration whose values each have the right type, but for what a program hands in."""
    for part in CHECKS:
        if not (part is _data and "train" in handed_in) and not (
            part is _eval and {"task", "metrics"} & set(handed_in)
        ):
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
    if not config.run.root.isprintable():
        yield Problem("run.root", f"must be a printable path (got {show(config.run.root)})")


def _task(config: Config) -> Iterator[Problem]:
    if config.task.kind == "causal_lm":
        yield Problem("task.kind", "causal_lm is not built yet: classification and regression are")
    if config.task.multi_label and config.task.kind != "classification":
        yield Problem("task.multi_label", f"belongs to classification, not to {config.task.kind}", ("task.kind",))
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
    if isinstance(data.validation, dict) and "train" in data.validation:
        yield Problem("data.validation", "a set can't be called train: eval/train/ is eval.train_examples'")
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
    known = METRICS.get("multi_label" if config.task.multi_label else config.task.kind)
    if known is None:
        return
    where, _, metric = config.eval.metric.rpartition("/")
    sets = config.data.validation if isinstance(config.data.validation, dict) else {}
    homes = [f"eval/{name}" for name in sets] or ["eval"]
    homes += ["eval/train"] if config.eval.train_examples else []
    if where not in homes:
        text = f"{where}/ is none of {', '.join(homes)} (got {show(config.eval.metric)})"
        yield Problem("eval.metric", text, ("data.validation", "eval.train_examples"))
    elif metric not in known:
        text = f"must be one of {', '.join(known)} (got {show(metric)})"
        starts = [name for name in known if name.startswith(metric.lower())]
        if near := starts or difflib.get_close_matches(metric.lower(), known, n=1):
            text += f"; did you mean {near[0]}?"
        yield Problem("eval.metric", text, ("task.kind",))
    elif config.eval.mode != (mode := "min" if metric in LOWER_IS_BETTER else "max"):
        better = "lower" if mode == "min" else "higher"
        text = f"{metric} is better {better}: {mode} or null"
        yield Problem("eval.mode", f"{text} (got {show(config.eval.mode)})", ("eval.metric", "task.kind"))


CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (_run, _task, _data, _builtin, _model, _optim, _eval)

"""On two ranks: what a program hands to fit() in place of the configuration's, and what is wrong with it, said at once.

`handed_in.py FOLDER`: every part is a function; all run in one process group, which an error must leave in order.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from transformers import AutoTokenizer

from isostep import Config, fit
from isostep.data import builtin
from isostep.errors import ConfigError, DataError, FolderInUseError
from isostep.tasks import Classification
from isostep.track.lock import FolderLock

WORK = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
ROWS, OWN = 100, 31


def config(name: str, *more: str, handed_in: tuple[Any, ...] = ()) -> Config:
    """14 steps; the model is the folder that `main` makes first, so that its tokenizer is one of files."""
    return Config.load(overrides=[
        "--run.name", name, "--run.root", str(WORK / "runs"), "--model.path", str(WORK / "model"), "--batch.size", "16",
        "--train.epochs", "2", "--eval.every", "5", "--checkpoint.every", "3", "--optim.lr", "1e-3", "--run.seed", "5",
        "--track.wandb", "disabled", "--track.log_every", "1", *more], handed_in=handed_in)  # fmt: skip


def texts(split: str, n: int) -> dict[str, list[Any]]:
    made = builtin.sms(split)[:n]
    return {"said": [text for text, _ in made], "kind": [label for _, label in made]}


def rows(name: str) -> list[dict[str, Any]]:
    """The record without times."""
    lines = (WORK / "runs" / name / "metrics.jsonl").read_text().splitlines()
    kept = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in kept]


def weights(name: str) -> dict[str, torch.Tensor]:
    return load_file(WORK / "runs" / name / "final" / "model.safetensors")


def assert_equal(one: str, other: str) -> None:
    assert rows(one) == rows(other), f"{one} and {other} differ in a row"
    assert all(torch.equal(value, weights(other)[key]) for key, value in weights(one).items())


def datasets_give_the_curve_of_files() -> None:
    names = ("--data.text", "said", "--data.label", "kind")
    for split, n in (("train", ROWS), ("validation", OWN)):
        if dist.get_rank() == 0:
            datasets.Dataset.from_dict(texts(split, n)).to_json(WORK / f"{split}.jsonl")
    dist.barrier()
    files = ("--data.train", str(WORK / "train.jsonl"), "--data.validation", str(WORK / "validation.jsonl"))
    fit(config("files", *names, *files))
    train, own = (datasets.Dataset.from_dict(texts(split, n)) for split, n in (("train", ROWS), ("validation", OWN)))
    history = fit(config("texts", *names, handed_in=("train",)), train=train, validation=own)
    assert_equal("files", "texts")
    assert history == json.loads((WORK / "runs" / "files" / "history.json").read_text())
    assert history["steps"] == [5, 10, 14] and history["examples_seen"] == 2 * ROWS

    tokenizer = AutoTokenizer.from_pretrained(WORK / "model")
    classes = datasets.ClassLabel(names=["ham", "spam"])

    def tokens(rows: datasets.Dataset) -> datasets.Dataset:
        made = rows.map(lambda row: {**tokenizer(row["said"], truncation=True, max_length=256),
                                     "labels": classes.str2int(row["kind"])})  # fmt: skip
        return made.remove_columns(["said", "kind", "attention_mask"]).cast_column("labels", classes)

    # more rows than are wanted, in another order, as a selection: what a program has at hand
    more = tokens(datasets.Dataset.from_dict(texts("train", ROWS + 7))).select(range(ROWS)).with_format("torch")
    fit(config("tokens", handed_in=("train",)), train=more, validation=tokens(own))
    assert_equal("files", "tokens")
    fit(config("sets", handed_in=("train",)), train=more, validation={"a": tokens(own), "b": tokens(own)})
    for ours, theirs in zip(rows("sets"), rows("files"), strict=True):
        assert all(ours[f"eval/{name}/loss"] == theirs["eval/loss"] for name in "ab" if "eval/loss" in theirs)
    fit(config("split off", "--train.max_steps", "1", handed_in=("train",)), train=more)
    assert "eval/loss" in rows("split off")[-1]


def missed(predictions: Any, targets: Any) -> dict[str, float]:
    return {"missed": float(((targets == 1) & (predictions != 1)).sum())}


def metrics_appear_and_may_decide() -> None:
    more = ("--data.path", "builtin:sms", "--data.max_train_examples", str(ROWS), "--eval.max_examples", "61")
    fit(config("metrics", *more, "--eval.metric", "missed", "--eval.mode", "min", handed_in=("metrics",)),
        metrics=missed)  # fmt: skip
    values = [row["eval/missed"] for row in rows("metrics") if "eval/loss" in row]
    assert len(values) == 3 and all("eval/accuracy" in row for row in rows("metrics") if "eval/loss" in row)
    status = json.loads((WORK / "runs" / "metrics" / "status.json").read_text())
    assert status["best_value"] == min(values), (status, values)
    typo = config("mist", *more, "--eval.metric", "mist", handed_in=("metrics",))
    refused(ConfigError, "eval.metric: eval/mist is no value of this task", lambda: fit(typo, metrics=missed))


class CrashError(Exception):
    pass


class Crashing(Classification):
    """Fails once, in its `at`th training pass; one pass is one step here."""

    def __init__(self, at: int) -> None:
        self.left = at

    def item_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.left -= torch.is_grad_enabled()
        if self.left == 0:
            raise CrashError
        return super().item_losses(logits, labels)


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps + 1)


def a_schedule_is_gone_on_with() -> None:
    more = ("--data.path", "builtin:sms", "--data.max_train_examples", str(ROWS), "--eval.max_examples", "61")
    fit(config("whole", *more), scheduler=one_cycle)
    plain = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=1e-3)
    reference, wanted = one_cycle(plain, 14), []
    for _ in range(14):
        wanted.append(reference.get_last_lr()[0])
        plain.step()
        reference.step()
    assert [row["train/lr"] for row in rows("whole")] == wanted
    try:
        fit(config("cut", *more), scheduler=one_cycle, task=Crashing(2 + 8))  # two passes come before the first step
    except CrashError:
        pass
    else:
        raise AssertionError("it was to crash")
    assert rows("cut")[-1]["step"] == 7
    fit(config("cut", *more), scheduler=one_cycle, resume=True)
    assert_equal("whole", "cut")

    refused(ConfigError, "holds a run already; resume=True goes on with it", lambda: fit(config("cut", *more)))
    before = (WORK / "runs" / "cut" / "metrics.jsonl").stat().st_mtime_ns
    history = fit(config("cut", *more), scheduler=one_cycle, resume=True)
    assert history["steps"] == [5, 10, 14], "a finished run gives its history"
    assert (WORK / "runs" / "cut" / "metrics.jsonl").stat().st_mtime_ns == before


def refused(kind: type[Exception], text: str, start: Callable[[], object]) -> None:
    """`start` raises `kind` with `text` in its message, on this rank within seconds."""
    began = time.monotonic()
    try:
        start()
    except kind as error:
        assert text in str(error), str(error)
        assert time.monotonic() - began < 30
    else:
        raise AssertionError(f"{text}: nothing was raised")
    dist.barrier()  # no rank is left in a collective of the run's


class Mean(Classification):
    def item_losses(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().item_losses(logits, labels).mean()


class Hidden(nn.Module):
    def __init__(self, task: Classification) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(len(task.tokenizer), 8)

    def forward(self, input_ids: torch.Tensor, **_: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": self.embeddings(input_ids)}


def what_is_wrong_is_said() -> None:
    data = ("--data.path", "builtin:sms", "--data.max_train_examples", "40", "--train.max_steps", "1")
    tokens = datasets.Dataset.from_dict({"input_ids": [[2, 5, 3]] * 40})
    adamw = torch.optim.AdamW

    def wrong(name: str, *more: str, handed_in: tuple[Any, ...] = (), **parts: Any) -> Callable[[], object]:
        return lambda: fit(config(name, *data, *more, handed_in=handed_in), **parts)

    given = {"handed_in": ("train",), "train": tokens}
    refused(ConfigError, "Mean.item_losses gave shape () for", wrong("mean", task=Mean()))
    refused(ConfigError, "the model returned dict without logits",  # type: ignore[arg-type]
            wrong("no logits", model=Hidden))  # fmt: skip
    refused(ConfigError, "fit: the model is int", wrong("no model", model=lambda task: 3))
    refused(ConfigError, "fit: the optimizer factory leaves out", wrong("few", optimizer=lambda g: adamw(g[:1])))
    refused(ConfigError, "fit: the optimizer factory returned list", wrong("no optimizer", optimizer=lambda g: g))
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    refused(ConfigError, "ReduceLROnPlateau follows a metric", wrong("plateau", scheduler=lambda o, n: plateau(o)))
    refused(ConfigError, "the scheduler factory returned float", wrong("rate", scheduler=lambda o, n: 0.5))
    refused(ConfigError, "validation is handed in without train", wrong("half", validation=tokens))
    refused(DataError, "train: it has no column 'labels'", wrong("no labels", **given))
    refused(ConfigError, "builtin:tiny makes its tokenizer from texts",
            wrong("tiny", "--model.path", "builtin:tiny", **given))  # fmt: skip
    lock = FolderLock(WORK / "runs" / "in use")
    if dist.get_rank() == 0:
        lock.acquire()
    dist.barrier()
    refused(FolderInUseError, "is in use by process", wrong("in use"))
    lock.release()
    fit(config("after all", *data))  # and the process group is in order


def main() -> None:
    first = Config.load(overrides=[
        "--run.name", "first", "--run.root", str(WORK / "runs"), "--data.path", "builtin:sms", "--model.path",
        "builtin:tiny", "--model.dropout", "0", "--data.max_train_examples", "40", "--train.max_steps", "1",
        "--track.wandb", "disabled"])  # fmt: skip
    fit(first)
    if dist.get_rank() == 0:
        (WORK / "model").symlink_to(WORK / "runs" / "first" / "final")
    dist.barrier()
    datasets_give_the_curve_of_files()
    metrics_appear_and_may_decide()
    a_schedule_is_gone_on_with()
    what_is_wrong_is_said()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

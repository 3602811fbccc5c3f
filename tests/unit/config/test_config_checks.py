"""Values that are right by themselves and wrong together, and what this version can't do yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from isostep.config import Config
from isostep.errors import ConfigError

OWN = ["--data.train", "x.csv", "--data.text", "t", "--data.label", "y", "--model.path", "m", "--run.name", "r"]


def load(*flags: str) -> Config:
    return Config.load(overrides=[*OWN, *flags])


def test_the_starting_point_is_right() -> None:
    assert load().data.text == ("t",)


METRICS = "loss, accuracy, f1, precision, recall, mcc, f1_macro, precision_macro, recall_macro"
NAME = (
    "run.name: must be a plain folder name: printable, no '/' or '\\', no leading '.', no spaces around it, "
    "at most 200 bytes (got "
)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--run.name", "../x"], NAME + '"../x")'),
        (["--run.name", ".."], NAME + '"..")'),
        (["--run.name", "a\\b"], NAME + '"a\\\\b")'),
        (["--run.name", "a\nb"], NAME + '"a\\nb")'),
        (["--run.name", " a"], NAME + '" a")'),
        (["--run.name", ""], 'run.name: must be a text or null (got "")'),
        (["--task.kind", "causal_lm"], "task.kind: causal_lm is not built yet: classification and regression are"),
        (["--task.kind", "regression", "--task.multi_label", "true"],
         "task.multi_label: belongs to classification, not to regression"),
        (["--eval.metric", "eval/other/f1"], 'eval.metric: eval/other/ is none of eval (got "eval/other/f1")'),
        (["--lora.r", "8"], "lora: is not built yet: leave it out, or null"),
        (["--model.attention", "varlen"], "model.attention: varlen is not built yet: auto, sdpa or eager"),
        (["--data.prompt", "p"], 'data.prompt: belongs to task.kind causal_lm, not to classification (got "p")'),
        (["--data.train_on", "all"],
         'data.train_on: belongs to task.kind causal_lm, not to classification (got "all")'),
        (["--data.drop_empty", "true"],
         "data.drop_empty: belongs to task.kind causal_lm, not to classification (got true)"),
        (["--data.train", "null"], "data.train: is needed: a file, or a split of the dataset in data.path"),
        (["--data.text", "null"], "data.text: is needed: the column of the text, or two columns"),
        (["--data.text", "a", "b", "c"], 'data.text: takes one column or two (got 3: ["a", "b", "c"])'),
        (["--data.label", "null"], "data.label: is needed: the column of the label"),
        (["--data.label", "u", "v"], 'data.label: several columns need task.multi_label: true (got ["u", "v"])'),
        (["--data.label", "t"], 'data.label: column "t" is a text of data.text, too'),
        (["--data.path", "builtin:smss"], 'data.path: is not built in (got "builtin:smss"); did you mean builtin:sms?'),
        (["--model.path", "builtin:bert"],
         'model.path: is not built in (got "builtin:bert"); did you mean builtin:tiny?'),
        (["--optim.warmup", "2.5"], "optim.warmup: counts steps from 1 on and must then be whole (got 2.5)"),
        (["--eval.metric", "acc"], f'eval.metric: must be one of {METRICS} (got "acc"); did you mean accuracy?'),
        (["--eval.metric", "eval/F1"], f'eval.metric: must be one of {METRICS} (got "F1"); did you mean f1?'),
        (["--eval.metric", "rouge"], f'eval.metric: must be one of {METRICS} (got "rouge")'),
        (["--eval.metric", "f1", "--eval.mode", "min"], 'eval.mode: f1 is better higher: max or null (got "min")'),
        (["--optim.betas", "0.9", "1"],
         "optim.betas: must be a list of 2 items, each a number >= 0 and < 1 (got [0.9, 1])"),
        (["--optim.lr", ".nan"], "optim.lr: must be a number > 0 or null (got NaN)"),
        (["--optim.max_grad_norm", ".inf"], "optim.max_grad_norm: must be a number > 0 or null (got Infinity)"),
        (["--eval.patience", "0"], "eval.patience: must be a whole number >= 1 or null (got 0)"),
    ],
)  # fmt: skip
def test_each_is_one_line(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(*flags)
    assert str(caught.value) == f"command line: {message}"


@pytest.mark.parametrize(
    "flags",
    [
        ["--data.path", "builtin:sms", "--data.text", "null", "--data.label", "null", "--data.train", "null"],
        ["--optim.warmup", "100"],
        ["--optim.warmup", "0"],
        ["--model.trust_remote_code", "true", "--model.activation_checkpointing", "true"],
        ["--run.resume", "never"],
        ["--run.resume", "runs/x/checkpoints/step-00000003"],
        ["--run.name", "seed 1, lr 5e-5 ü"],
        ["--eval.metric", "recall_macro", "--eval.mode", "max", "--eval.patience", "3"],
        ["--data.train_on", "completion"],
    ],
)
def test_these_are_fine(flags: list[str]) -> None:
    load(*flags)


@pytest.mark.parametrize("metric", ["loss", "accuracy", "f1", "precision", "recall", "mcc", "f1_macro"])
def test_metrics_are_known_with_and_without_prefix_and_know_their_direction(metric: str) -> None:
    for name in (metric, f"eval/{metric}"):
        chosen = load("--eval.metric", name).eval
        assert (chosen.metric, chosen.mode) == (f"eval/{metric}", "min" if metric == "loss" else "max")


def test_what_rests_on_a_wrong_value_is_not_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load("--task.kind", "speech", "--eval.metric", "wer", "--data.prompt", "p")
    assert str(caught.value).count("\n") == 0 and "task.kind" in str(caught.value)

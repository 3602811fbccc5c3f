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
        (["--run.root", "a\0b"], 'run.root: must be a printable path (got "a\\u0000b")'),
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


SETS = """\
data: {train: a.csv, text: [t], label: y, validation: %s}
model: {path: m}
run: {name: r}
task: {kind: %s}
eval: %s
"""


def sets(folder: Path, validation: str, evaluation: str = "{}", kind: str = "classification") -> Config:
    path = folder / "c.yaml"
    path.write_text(SETS % (validation, kind, evaluation))
    return Config.load(path)


@pytest.mark.parametrize(
    ("validation", "evaluation", "metric"),
    [
        ("{own: a.csv, other: b.csv}", "{}", "eval/own/loss"),
        ("{other: b.csv, own: a.csv}", "{metric: f1}", "eval/other/f1"),
        ("{own: a.csv, other: b.csv}", "{metric: eval/accuracy}", "eval/own/accuracy"),
        ("{own: a.csv, other: b.csv}", "{metric: other/accuracy}", "eval/other/accuracy"),
        ("{own: a.csv, other: b.csv}", "{metric: eval/other/loss}", "eval/other/loss"),
        ("{own: a.csv}", "{metric: train/f1, train_examples: 9}", "eval/train/f1"),
        ("a.csv", "{metric: train/loss, train_examples: 9}", "eval/train/loss"),
        ("{A-b_9: a.csv}", "{}", "eval/A-b_9/loss"),
    ],
)
def test_the_metric_is_the_first_sets_unless_another_is_named(
    tmp_path: Path, validation: str, evaluation: str, metric: str
) -> None:
    made = sets(tmp_path, validation, evaluation)
    assert (made.eval.metric, made.eval.mode) == (metric, "min" if metric.endswith("loss") else "max")
    again = tmp_path / "again.yaml"
    again.write_text(made.to_yaml())
    assert Config.load(again) == made
    if isinstance(made.data.validation, dict):
        back = Config.load(again).data.validation
        assert isinstance(back, dict) and list(back) == list(made.data.validation), "the order of the sets counts"


NO_SETS = "data.validation: must be a text or texts by name (of letters, digits, _ and -) or null"


@pytest.mark.parametrize(
    ("validation", "evaluation", "message"),
    [
        ("{own: a.csv}", "{metric: far/f1}", 'eval.metric: eval/far/ is none of eval/own (got "eval/far/f1")'),
        ("{a: a.csv, b: a.csv}", "{metric: train/f1}",
         'eval.metric: eval/train/ is none of eval/a, eval/b (got "eval/train/f1")'),
        ("{own: a.csv}", "{metric: own/acc}",
         f'eval.metric: must be one of {METRICS} (got "acc"); did you mean accuracy?'),
        ("a.csv", "{metric: own/f1}", 'eval.metric: eval/own/ is none of eval (got "eval/own/f1")'),
        ("{train: a.csv}", "{}", "data.validation: a set can't be called train: eval/train/ is eval.train_examples'"),
        ("{}", "{}", f"{NO_SETS} (got {{}})"),
        ("{a/b: a.csv}", "{}", f"{NO_SETS} (got {{'a/b': 'a.csv'}})"),
        ("{a b: a.csv}", "{}", f"{NO_SETS} (got {{'a b': 'a.csv'}})"),
        ("{3: a.csv}", "{}", f"{NO_SETS} (got {{3: 'a.csv'}})"),
        ("{own: null}", "{}", f"{NO_SETS} (got {{'own': None}})"),
        ("[a.csv]", "{}", f'{NO_SETS} (got ["a.csv"])'),
    ],
)  # fmt: skip
def test_sets_that_cannot_be(tmp_path: Path, validation: str, evaluation: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sets(tmp_path, validation, evaluation)
    assert str(caught.value) == f"{tmp_path}/c.yaml: {message}"


def test_the_command_line_puts_one_set_in_place_of_several(tmp_path: Path) -> None:
    sets(tmp_path, "{own: a.csv, other: b.csv}")
    one = Config.load(tmp_path / "c.yaml", overrides=["--data.validation", "b.csv"])
    assert (one.data.validation, one.eval.metric) == ("b.csv", "eval/loss")


@pytest.mark.parametrize("metric", ["loss", "mse", "rmse", "mae", "r2", "pearson", "spearman"])
def test_regression_knows_which_way_its_metrics_are_better(tmp_path: Path, metric: str) -> None:
    better, worse = ("min", "max") if metric in ("loss", "mse", "rmse", "mae") else ("max", "min")
    for validation, where in (("a.csv", "eval"), ("{own: a.csv}", "eval/own")):
        made = sets(tmp_path, validation, f"{{metric: {metric}}}", "regression")
        assert (made.eval.metric, made.eval.mode) == (f"{where}/{metric}", better)
    word = {"min": "lower", "max": "higher"}[better]
    with pytest.raises(ConfigError, match=rf'eval.mode: {metric} is better {word}: {better} or null \(got "{worse}"\)'):
        sets(tmp_path, "a.csv", f"{{metric: {metric}, mode: {worse}}}", "regression")
    with pytest.raises(ConfigError, match=r'eval\.metric: must be one of loss, mse, .* \(got "accuracy"\)'):
        sets(tmp_path, "a.csv", "{metric: accuracy}", "regression")


def test_what_a_program_hands_in_need_not_be_named() -> None:
    bare = ["--model.path", "m", "--run.name", "r"]
    assert Config.load(overrides=bare, handed_in=["train"]).data.train is None
    own = [*bare, "--eval.metric", "own"]
    for given in (["train", "metrics"], ["train", "task"]):
        made = Config.load(overrides=own, handed_in=given)  # type: ignore[arg-type]
        assert (made.eval.metric, made.eval.mode) == ("eval/own", "max")
    with pytest.raises(ConfigError, match=r'^command line: eval\.metric: must be one of .* \(got "own"\)$'):
        Config.load(overrides=own, handed_in=["train"])
    with pytest.raises(ConfigError) as caught:
        Config.load(overrides=bare, handed_in=["task", "metrics"])
    keys = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert keys == ["data.train", "data.text", "data.label"], "data is still needed"
    with pytest.raises(ConfigError, match=r"batch\.size"):
        Config.load(overrides=[*bare, "--batch.size", "0"], handed_in=["train", "task", "metrics"])

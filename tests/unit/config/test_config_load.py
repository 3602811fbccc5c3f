"""Files to a Config: defaults, merging, round trips, and one line for each problem."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isostep.config import Batch, Checkpoint, Config, Data, Eval, Model, Optim, Run, Track, Train
from isostep.config.keys import KEYS, docs
from isostep.errors import ConfigError

GOOD = "data: {path: builtin:sms}\nmodel: {path: builtin:tiny}\n"


def write(folder: Path, text: str, name: str = "c.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def problems(*paths: Path, overrides: list[str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.load(*paths, overrides=overrides or [])
    return str(caught.value).replace(f"{paths[0].parent}/" if paths else "\0", "").splitlines()


def test_absent_keys_take_the_documented_defaults(tmp_path: Path) -> None:
    config = Config.load(write(tmp_path, GOOD, "mine.yaml"))
    assert config == Config(run=Run(name="mine"), data=Data(path="builtin:sms"), model=Model(path="builtin:tiny"))
    assert (config.optim.lr, config.optim.betas, config.optim.warmup) == (5e-5, (0.9, 0.999), 0.06)
    assert (config.batch.size, config.train.epochs, config.eval.every, config.checkpoint.keep) == (32, 3, "epoch", 2)
    assert (config.run.seed, config.run.timeout, config.eval.metric, config.eval.mode) == (42, 900, "eval/loss", "min")
    assert config.lora is None and config.data.max_length is None and config.train.precision is None


def test_later_files_win_key_by_key_and_name_the_run(tmp_path: Path) -> None:
    first = write(tmp_path, GOOD + "optim: {lr: 1e-3, eps: 1e-6}\ndata: {}\n".replace("data: {}\n", ""), "a.yaml")
    second = write(tmp_path, "optim: {lr: 2}\nbatch:\n", "b.yaml")
    config = Config.load(first, second)
    assert (config.optim.lr, config.optim.eps, config.run.name) == (2.0, 1e-6, "b")


def test_null_takes_back_an_earlier_value(tmp_path: Path) -> None:
    first = write(
        tmp_path, GOOD + "optim: {lr: 1e-3, max_grad_norm: 2}\ntrack: {tags: [a]}\nrun: {name: x}\n", "a.yaml"
    )
    second = write(tmp_path, "optim: {lr: null, max_grad_norm: null}\ntrack: {tags: null}\nrun: {name: null}", "b.yaml")
    config = Config.load(first, second)
    assert (config.optim.lr, config.optim.max_grad_norm) == (5e-5, None)
    assert (config.track.tags, config.run.name) == ((), "b")


def test_lora_changes_the_default_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isostep.config.load.check", lambda config, handed_in: ())
    for text, lr in (
        ("lora: {}", 2e-4),
        ("lora: {r: 4}\noptim: {lr: 1e-3}", 1e-3),
        ("lora: null", 5e-5),
        ("lora:", 5e-5),
    ):
        assert Config.load(write(tmp_path, GOOD + text)).optim.lr == lr
    on = Config.load(write(tmp_path, GOOD), overrides=["--lora.r", "8"])
    assert on.lora is not None and (on.lora.r, on.lora.alpha, on.optim.lr) == (8, 32, 2e-4)
    assert Config.load(write(tmp_path, GOOD + "lora: {r: 4}"), overrides=["--lora", "null"]).lora is None


def test_every_problem_of_a_file_is_one_line(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
lr: 3
learning_rate: 5
batch.size: 4
batch: {size: many, per_device_train_batch_size: 8}
optim: {learnin_rate: 1, betas: [0.9, 1.5], weight_decay: true, eps: "4", schedule: cosin, warmup: 1.5}
eval: 5
task: {kind: classifcation, multi_label: 1}
run: {name: ../../evil, epochs: 3, seed: -1}
data: {train: x.csv, text: [a, b, c], label: a}
train: {max_steps: 0, epochs: 2.0}
checkpoint: {every: epochs}
zzz:
""",
    )
    assert problems(path) == [
        "c.yaml: lr: unknown key (got 3); did you mean optim.lr?",
        "c.yaml: learning_rate: unknown key (got 5); learning_rate is optim.lr here",
        "c.yaml: batch.size: unknown key (got 4); write it as size: below batch:",
        "c.yaml: batch.per_device_train_batch_size: unknown key (got 8); per_device_train_batch_size is not set here: "
        "batch.size = per-device batch x accumulation x ranks (memory: batch.tokens_per_device)",
        "c.yaml: optim.learnin_rate: unknown key (got 1); learning_rate is optim.lr here",
        "c.yaml: eval: must be a section with keys below it (got 5)",
        "c.yaml: run.epochs: unknown key (got 3); did you mean train.epochs?",
        "c.yaml: zzz: unknown key (got null)",
        "c.yaml: run.seed: must be a whole number >= 0 and <= 4294967295 (got -1)",
        'c.yaml: task.kind: must be one of classification, regression, causal_lm (got "classifcation"); '
        "did you mean classification?",
        "c.yaml: task.multi_label: must be true or false (got 1)",
        "c.yaml: model.path: is needed: a hub id, a local folder or builtin:tiny",
        'c.yaml: batch.size: must be a whole number >= 1 (got "many")',
        "c.yaml: optim.weight_decay: must be a number >= 0 (got true)",
        "c.yaml: optim.betas: must be a list of 2 items, each a number >= 0 and < 1 (got [0.9, 1.5])",
        'c.yaml: optim.eps: must be a number > 0 (got "4")',
        'c.yaml: optim.schedule: must be one of linear, cosine, constant (got "cosin"); did you mean cosine?',
        "c.yaml: train.epochs: must be a whole number >= 1 (got 2.0)",
        "c.yaml: train.max_steps: must be a whole number >= 1 or null (got 0)",
        'c.yaml: checkpoint.every: must be epoch or a whole number >= 1 (got "epochs"); did you mean epoch?',
        "c.yaml: run.name: must be a plain folder name: printable, no '/' or '\\', no leading '.', "
        'no spaces around it, at most 200 bytes (got "../../evil")',
        'c.yaml: data.text: takes one column or two (got 3: ["a", "b", "c"])',
        'c.yaml: data.label: column "a" is a text of data.text, too',
        "c.yaml: optim.warmup: counts steps from 1 on and must then be whole (got 1.5)",
    ]


def test_a_problem_names_the_source_of_the_value(tmp_path: Path) -> None:
    first = write(tmp_path, GOOD + "batch: {size: -1}\noptim: {lr: -1, eps: -1}\n", "a.yaml")
    second = write(tmp_path, "optim: {eps: -2}\n", "b.yaml")
    assert problems(first, second, overrides=["--optim.lr", "-3"]) == [
        "a.yaml: batch.size: must be a whole number >= 1 (got -1)",
        "command line: optim.lr: must be a number > 0 or null (got -3)",
        "b.yaml: optim.eps: must be a number > 0 (got -2)",
    ]


def test_a_repeated_key_is_reported_with_the_rest(tmp_path: Path) -> None:
    assert problems(write(tmp_path, GOOD + "batch:\n  size: 1\n  size: 2\n  sise: 3\n")) == [
        "c.yaml, line 5: batch.size: stands here a second time",
        "c.yaml: batch.sise: unknown key (got 3); did you mean batch.size?",
    ]


def test_a_missing_file_is_named_and_nothing_guessed_about_its_content(tmp_path: Path) -> None:
    bad = write(tmp_path, "batch: {size: 0}\n")
    assert problems(bad, tmp_path / "no.yaml") == [
        "no.yaml: the config file can't be read: No such file or directory",
        "c.yaml: batch.size: must be a whole number >= 1 (got 0)",
    ]


def test_without_a_file_the_command_line_is_named() -> None:
    assert problems(overrides=["--batch.size", "0"]) == [
        "command line: model.path: is needed: a hub id, a local folder or builtin:tiny",
        "command line: batch.size: must be a whole number >= 1 (got 0)",
        "command line: data.train: is needed: a file, or a split of the dataset in data.path",
        "command line: data.text: is needed: the column of the text, or two columns",
        "command line: data.label: is needed: the column of the label",
    ]


def test_all_keys_are_documented_and_described() -> None:
    assert docs().keys() == KEYS.keys()
    assert all(text.endswith(".") and len(text) < 130 for text in docs().values())


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
PRINTABLE = TEXT.filter(str.isprintable)
NAME = st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9_ é.-]{0,10}[a-z0-9]", fullmatch=True)
FLOAT = st.floats(min_value=1e-300, max_value=1e300)
COUNT = st.integers(1, 10**12)
EVERY: st.SearchStrategy[Any] = st.one_of(st.just("epoch"), COUNT)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    columns = draw(st.lists(TEXT, min_size=3, max_size=3, unique=True))
    return Config(
        run=Run(name=draw(NAME), root=draw(PRINTABLE), seed=draw(st.integers(0, 2**32 - 1)), timeout=draw(FLOAT)),
        data=Data(train=draw(TEXT), text=tuple(columns[:2]), label=columns[2], validation=draw(st.none() | TEXT)),
        model=Model(path="x" + draw(TEXT), dropout=draw(st.none() | st.floats(0, 0.99))),
        batch=Batch(size=draw(COUNT), tokens_per_device=draw(st.none() | COUNT)),
        optim=Optim(lr=draw(FLOAT), max_grad_norm=draw(st.none() | FLOAT), betas=(draw(st.floats(0, 0.99)), 0.5)),
        train=Train(precision=draw(st.sampled_from([None, "no", "bf16", "fp16"]))),
        eval=Eval(metric=draw(st.sampled_from(["loss", "f1", "eval/accuracy", "mcc"])), every=draw(EVERY)),
        checkpoint=Checkpoint(every=draw(EVERY)),
        track=Track(tags=tuple(draw(st.lists(TEXT, max_size=2))), notes=draw(st.none() | TEXT)),
    )


@settings(max_examples=40, deadline=None)
@given(configs())
def test_to_yaml_is_read_back_to_an_equal_config(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8", newline="")
    assert Config.load(path) == config


def test_to_dict_holds_every_key_as_plain_values() -> None:
    config = Config(data=Data(text=("a", "b")), model=Model(path="m"))
    tree = config.to_dict()
    assert tree["data"]["text"] == ["a", "b"] and tree["optim"]["betas"] == [0.9, 0.999] and tree["lora"] is None
    names = {f"{section}.{key}" for section, content in tree.items() if content is not None for key in content}
    assert names == {name for name in KEYS if not name.startswith("lora.")}
    assert dataclasses.replace(config) == config

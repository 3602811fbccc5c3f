"""The command line: flags, lists, negative numbers, foreign names, --help, --print-config, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isostep.cli.main import main
from isostep.config import Config
from isostep.config.commandline import parse
from isostep.config.foreign import FOREIGN, hint
from isostep.config.keys import KEYS
from isostep.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
BASE = ["--data.path", "builtin:sms", "--model.path", "builtin:tiny", "--run.name", "r"]


def load(*flags: str) -> Config:
    return parse([*BASE, *flags], "train.py")


def problems(*flags: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*flags)
    return str(caught.value).splitlines()


def test_hyphens_underscores_and_equals_signs() -> None:
    for flags in (
        ["--batch.tokens_per_device", "9"],
        ["--batch.tokens-per-device", "9"],
        ["--batch.tokens-per-device=9"],
    ):
        assert load(*flags).batch.tokens_per_device == 9


def test_lists_take_several_values_or_one_in_brackets() -> None:
    assert load("--data.text", "#1 String", "#2 String").data.text == ("#1 String", "#2 String")
    assert load("--data.text", "1", "null").data.text == ("1", "null")
    assert load("--data.text", "[a, b]").data.text == ("a", "b")
    assert (
        load("--optim.betas", "0.8", "9e-1").optim.betas
        == load("--optim.betas", "[0.8, 0.9]").optim.betas
        == (0.8, 0.9)
    )
    assert load("--track.tags", "one").track.tags == ("one",)


def test_texts_are_taken_as_they_are() -> None:
    config = load("--run.name", "2024", "--data.label", "007", "--train.precision", "no", "--data.revision", "1e3")
    assert (config.run.name, config.data.label, config.train.precision, config.data.revision) == (
        "2024",
        "007",
        "no",
        "1e3",
    )


def test_null_clears() -> None:
    for text in ("null", "None"):
        config = load("--optim.max_grad_norm", text, "--track.notes", text, "--eval.mode", text, "--optim.lr", text)
        assert (config.optim.max_grad_norm, config.track.notes, config.eval.mode) == (None, None, "min")
        assert config.optim.lr == 5e-5


def test_the_last_of_repeated_flags_wins_and_flags_win_over_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("batch: {size: 1}\ntrain: {epochs: 7}\neval: {every: 5}\n")
    second.write_text("batch: {size: 2}\ntrain: {epochs: 8}\n")
    for files in (["--config", str(first), "--config", str(second)], ["--config", str(first), str(second)]):
        config = load(*files, "--batch.size", "3", "--batch.size", "4")
        assert (config.batch.size, config.train.epochs, config.eval.every) == (4, 8, 5)


def test_unknown_wrong_negative_and_foreign_flags_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("optim: {lr: fast}\n")
    assert problems(
        "--config", str(path), "--learning_rate", "5e-5", "--batch.size", "-4", "--batch.tokens_per_device", "3", "4",
        "--optim.eps", "small", "--eval.mode", "--foo=3", "--gradient-accumulation-steps", "-2", "--batch", "8",
        "--optim.warmup-ratio", "0.1", "--config",
    ) == [
        'command line: learning_rate: unknown key (got "5e-5"); learning_rate is optim.lr here',
        'command line: foo: unknown key (got "3")',
        'command line: gradient-accumulation-steps: unknown key (got "-2"); '
        "gradient_accumulation_steps is not set here: "
        "batch.size = per-device batch x accumulation x ranks (memory: batch.tokens_per_device)",
        'command line: batch: must be a section with keys below it (got "8")',
        'command line: optim.warmup-ratio: unknown key (got "0.1"); warmup_ratio is optim.warmup here '
        "(below 1 a share of the steps, from 1 on steps)",
        "command line: batch.tokens_per_device: takes one value, a whole number >= 1 or null (got 3 4)",
        "command line: eval.mode: needs a value: one of min, max or null",
        "command line: --config needs a file",
        "command line: batch.size: must be a whole number >= 1 (got -4)",
        f"{path}: optim.lr: must be a number > 0 or null (got \"fast\")",
        'command line: optim.eps: must be a number > 0 (got "small")',
    ]  # fmt: skip


def test_a_value_without_flag() -> None:
    with pytest.raises(ConfigError, match=r'^command line: "c\.yaml" follows no flag; write --section\.key value$'):
        parse(["c.yaml", *BASE], "train.py")
    assert problems("--print-config", "yes") == ['command line: --print-config takes no value (got "yes")']


def test_foreign_names_answer_wherever_they_stand() -> None:
    for name in FOREIGN:
        assert hint(name) == hint(f"train.{name}") == hint(f"run.{name.replace('_', '-')}") == f"{name} {FOREIGN[name]}"
    mentioned = {
        word.strip(":;,()") for answer in FOREIGN.values() for word in answer.split() if "." in word.strip(".,:;()")
    }
    assert {
        word for word in mentioned if word.partition(".")[0] in {key.partition(".")[0] for key in KEYS}
    } <= KEYS.keys()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("batch.sise", "did you mean batch.size?"),
        ("train.lr", "did you mean optim.lr?"),
        ("dropout", "did you mean model.dropout or lora.dropout?"),
        ("every", "did you mean eval.every or checkpoint.every?"),
        ("optimm.lr", "did you mean optim.lr?"),
        ("optm", "did you mean optim?"),
        ("batch.tokens-per-device", "did you mean batch.tokens_per_device?"),
        ("num_train_epoch", "num_train_epochs is train.epochs here"),
        ("qqqq", ""),
    ],
)
def test_nearest_key(name: str, answer: str) -> None:
    assert hint(name) == answer


def test_print_config_round_trips_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        load("--print-config")
    assert stop.value.code == 0 and not list(tmp_path.iterdir())
    path = tmp_path / "again.yaml"
    path.write_text(capsys.readouterr().out)
    assert Config.load(path) == load()


def test_only_the_first_rank_speaks_and_every_rank_returns_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, text in (("0", "command line: batch.size: must be a whole number >= 1 (got 0)\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert main(["train", *BASE, "--batch.size", "0"]) == 2
        assert capsys.readouterr() == ("", text)
        for flag in ("--help", "--print-config"):
            with pytest.raises(SystemExit) as stop:
                main(["train", *BASE, flag])
            assert stop.value.code == 0 and bool(capsys.readouterr().out) == (rank == "0")


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0 and "predict" in capsys.readouterr().out
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("isostep ")
    assert main([]) == 2 and main(["fly"]) == 2
    assert capsys.readouterr().err == "isostep: no command 'fly'; there are train, plan, predict, export, doctor\n"


def test_help_names_every_key_and_imports_nothing_heavy() -> None:
    code = (
        "import runpy, sys\n"
        "sys.argv = ['train.py', '--help']\n"
        "try:\n    runpy.run_path('train.py', run_name='__main__')\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'datasets', 'accelerate', 'numpy', 'wandb', 'sklearn', 'pyarrow'}\n"
        "print('HEAVY', sorted(heavy & sys.modules.keys()))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    env.pop("RANK", None)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("HEAVY []\n"), done.stdout[-300:] + done.stderr
    assert [name for name in KEYS if f"--{name} " not in done.stdout.replace("\n", " ")] == []

"""The files in configs/ and accelerate_configs/ load, and say what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from isostep.config import Config

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
LAUNCHES = sorted((ROOT / "accelerate_configs").glob("*.yaml"))


def test_the_promised_files_are_there() -> None:
    assert {path.stem for path in CONFIGS} >= {"quickstart", "csv", "spam", "mrpc"}
    assert {path.stem for path in LAUNCHES} >= {"single", "cpu_2", "ddp", "multi_node"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_config_loads_under_its_name(path: Path) -> None:
    assert Config.load(path).run.name == path.stem


def test_quickstart_needs_no_network() -> None:
    config = Config.load(ROOT / "configs" / "quickstart.yaml")
    assert (config.data.path, config.model.path) == ("builtin:sms", "builtin:tiny")


MRPC = [
    "--data.path", "null", "--data.train", "train.tsv", "--data.validation", "dev.tsv",
    "--data.text", "#1 String", "#2 String", "--data.label", "Quality",
]  # fmt: skip
SPAM = ["--data.path", "null", "--data.train", "messages.tsv", "--data.text", "SMS", "--data.label", "Label"]


@pytest.mark.parametrize(
    ("name", "flags", "text", "label"),
    [("mrpc", MRPC, ("#1 String", "#2 String"), "Quality"), ("spam", SPAM, ("SMS",), "Label")],
)
def test_the_override_for_local_files_in_the_comment_works(
    name: str, flags: list[str], text: tuple[str, ...], label: str
) -> None:
    path = ROOT / "configs" / f"{name}.yaml"
    comment = " ".join(line.strip("# \\") for line in path.read_text().splitlines() if line.startswith("#"))
    assert " ".join(f'"{flag}"' if " " in flag else flag for flag in flags) in comment
    config = Config.load(path, overrides=flags)
    assert (config.data.path, config.data.text, config.data.label) == (None, text, label)


@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
def test_accelerate_reads_the_launch_file(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    loaded = load_config_from_file(str(path))
    processes = {"single": 1, "cpu_2": 2, "ddp": 8, "multi_node": 16}
    assert loaded.num_processes == processes.get(path.stem, loaded.num_processes)
    for key in yaml.safe_load(path.read_text()):
        assert hasattr(loaded, key)


def test_cpu_2_starts_two_gloo_processes() -> None:
    made = yaml.safe_load((ROOT / "accelerate_configs" / "cpu_2.yaml").read_text())
    assert (made["distributed_type"], made["use_cpu"], made["num_processes"], made["main_process_port"]) == (
        "MULTI_GPU", True, 2, 0,
    )  # fmt: skip

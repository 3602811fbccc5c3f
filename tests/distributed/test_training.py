"""The product by its own commands, on 1 to 4 gloo ranks: P1, P2, exit codes, and the run folder."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from launch import ROOT, environment, run_program, train, train_command

CURVE = ("train/loss", "train/grad_norm", "train/lr", "eval/")


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("a folder with spaces, ä and 語")


def settings(work: Path, name: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """A short run of builtin:tiny on builtin:sms: 100 examples in windows of 16, the last of an epoch of 4."""
    made: dict[str, Any] = {
        "run": {"name": name, "root": str(work / "runs"), "seed": 5},
        "data": {"path": "builtin:sms", "max_train_examples": 100},
        "model": {"path": "builtin:tiny", "dropout": 0.0},
        "batch": {"size": 16, "tokens_per_device": 1024},
        "optim": {"lr": 1e-3},
        "train": {"epochs": 2},
        "eval": {"every": 5, "max_examples": 61, "train_examples": 33},
        "track": {"wandb": "disabled", "log_every": 1},
    }
    for section, values in sections.items():
        made[section] = {**made.get(section, {}), **values}
    return made


def run(work: Path, config: dict[str, Any], world: int) -> list[dict[str, Any]]:
    done = train(work / config["run"]["name"], config, world, cache=work / "cache")
    assert done.returncode == 0, done.stdout + done.stderr
    return rows(folder(config))


def folder(config: dict[str, Any]) -> Path:
    return Path(config["run"]["root"]) / config["run"]["name"]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def reference(work) -> list[dict[str, Any]]:
    return run(work, settings(work, "one rank"), 1)


def assert_same_curve(reference, other):
    assert [row["step"] for row in reference] == [row["step"] for row in other]
    for a, b in zip(reference, other, strict=True):
        assert {k for k in a if not k.startswith("perf/")} == {k for k in b if not k.startswith("perf/")}
        for key in a:
            if key.startswith(CURVE):
                assert math.isclose(a[key], b[key], rel_tol=1e-5), f"step {a['step']}: {key} {a[key]} and {b[key]}"
        for key in ("epoch", "examples_seen", "tokens_seen"):
            assert a[key] == b[key], f"step {a['step']}: {key}"


@pytest.mark.parametrize(("world", "budget"), [(1, 100), (2, 1024), (3, 150), (4, 40)])
def test_p1_the_curve_is_the_same_on_any_number_of_ranks_and_any_token_budget(work, reference, world, budget):
    config = settings(work, f"w{world} b{budget}", batch={"tokens_per_device": budget})
    assert_same_curve(reference, run(work, config, world))


def test_every_window_counts_the_short_one_too(reference):
    assert [row["step"] for row in reference if "train/loss" in row] == list(range(1, 15))
    assert [row["examples_seen"] for row in reference] == [
        16,
        32,
        48,
        64,
        80,
        96,
        100,
        116,
        132,
        148,
        164,
        180,
        196,
        200,
    ]
    assert [row["step"] for row in reference if "eval/loss" in row] == [5, 10, 14]


def test_train_loss_is_the_mean_over_the_items_since_the_last_row(work, reference):
    sparse = run(work, settings(work, "sparse", track={"log_every": 4}), 2)
    assert [row["step"] for row in sparse] == [4, 5, 8, 10, 12, 14]
    done = 0
    for row in sparse:
        part = [r for r in reference if done < r["step"] <= row["step"]]
        sizes = [r["examples_seen"] - done_examples(reference, r) for r in part]
        mean = sum(n * r["train/loss"] for n, r in zip(sizes, part, strict=True)) / sum(sizes)
        assert math.isclose(mean, row["train/loss"], rel_tol=1e-5)
        done = row["step"]


def done_examples(reference, row):
    return max([r["examples_seen"] for r in reference if r["step"] < row["step"]], default=0)


def test_the_run_folder_holds_what_the_contract_says(work, reference):
    home = work / "runs" / "one rank"
    for name in (
        *("config.yaml", "env.json", "history.json", "logs/rank-0.log", "best/config.json", "final/config.json"),
        *("final/model.safetensors", "final/tokenizer.json", "final/README.md"),
    ):
        assert (home / name).exists(), name
    status = json.loads((home / "status.json").read_text())
    losses = {row["step"]: row["eval/loss"] for row in reference if "eval/loss" in row}
    best = min(losses, key=lambda step: losses[step])
    assert (status["state"], status["exit_code"], status["step"], status["world_size"]) == ("completed", 0, 14, 1)
    assert (status["best_step"], status["best_value"]) == (best, losses[best])
    history = json.loads((home / "history.json").read_text())
    assert history == {
        "steps": [5, 10, 14],
        "train_losses": [row["eval/train/loss"] for row in reference if "eval/loss" in row],
        "val_losses": [losses[step] for step in (5, 10, 14)],
        "train_accs": [row["eval/train/accuracy"] for row in reference if "eval/loss" in row],
        "val_accs": [row["eval/accuracy"] for row in reference if "eval/loss" in row],
        "examples_seen": 200,
    }


def test_started_again_a_finished_run_does_nothing_and_another_configuration_is_refused(work, reference):
    config = settings(work, "one rank")
    before = (folder(config) / "metrics.jsonl").read_bytes()
    again = train(work / "again", config, 1, cache=work / "cache")
    assert again.returncode == 0 and "already finished" in again.stdout
    other = copy.deepcopy(config)
    other["optim"]["lr"] = 5e-4
    refused = train(work / "again", other, 1, cache=work / "cache")
    assert refused.returncode == 2 and "optim.lr was 0.001, is 0.0005" in refused.stderr
    never = train(work / "again", config, 1, "--run.resume", "never", cache=work / "cache")
    assert never.returncode == 2 and "run.resume" in never.stderr
    assert (folder(config) / "metrics.jsonl").read_bytes() == before
    assert json.loads((folder(config) / "status.json").read_text())["state"] == "completed"


def test_patience_stops_all_ranks_at_the_same_step(work):
    config = settings(work, "patience", optim={"lr": 1e-7}, train={"epochs": 9},
                      eval={"every": 2, "patience": 2, "min_delta": 0.5, "train_examples": 0})  # fmt: skip
    got = run(work, config, 2)
    assert [row["step"] for row in got if "eval/loss" in row] == [2, 4, 6]
    status = json.loads((folder(config) / "status.json").read_text())
    assert (status["state"], status["step"], status["best_step"]) == ("completed", 6, 2)
    assert "no better eval/loss in 2 evaluations" in status["reason"]


@pytest.mark.parametrize(("rows_there", "world"), [(3, 4), (9, 2)])
def test_fewer_examples_than_ranks_or_than_a_batch(work, rows_there, world):
    path = work / f"few-{rows_there}.csv"
    path.write_text("text,label\n" + "".join(f"row {'x ' * i},{i % 2}\n" for i in range(rows_there)))
    data = {"path": None, "train": str(path), "validation": str(path), "text": ["text"], "label": "label",
            "max_train_examples": None}  # fmt: skip
    few = {"data": data, "eval": {"every": "epoch", "max_examples": None, "train_examples": 0}}
    alone = run(work, settings(work, f"few {rows_there}", **few), 1)
    many = run(work, settings(work, f"few {rows_there} on {world}", **few), world)
    assert_same_curve(alone, many)
    assert alone[-1]["examples_seen"] == 2 * rows_there


def test_empty_strings_are_kept_and_a_text_of_ten_thousand_words_is_cut(work):
    path = work / "odd.csv"
    path.write_text('text,label\n"",1\n' + "word " * 10_000 + ",0\nplain,1\nnull,0\n")
    data = {"path": None, "train": str(path), "validation": str(path), "text": ["text"], "label": "label"}
    config = settings(work, "odd", data=data, train={"epochs": 1}, eval={"every": "epoch"})
    done = train(work / "odd", config, 2, cache=work / "cache")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" in done.stdout and "empty" in done.stdout
    assert rows(folder(config))[-1]["examples_seen"] == 4


BAD = {
    "unknown key": ({"optim": {"learnin_rate": 1}}, 2, "optim.learnin_rate"),
    "missing file": ({"data": {"path": None, "train": "no/such.csv", "text": ["a"], "label": "y"}}, 3, "no/such.csv"),
    "no such model": ({"model": {"path": "no/such/model"}}, 2, "no/such/model"),
    "too long": ({"data": {"max_length": 100_000}}, 2, "data.max_length"),
    "bf16": ({"train": {"precision": "bf16"}}, 2, "train.precision"),
}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("case", ["missing file", "no such model", "too long", "unknown key"])
def test_a_users_mistake_is_one_or_two_lines_from_one_rank(work, case, world):
    change, code, named = BAD[case]
    config = settings(work, f"bad {case} {world}", **change)
    done = train(work / "bad", config, world, cache=work / "cache", timeout=60)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if named in line and "train.py" not in line]
    assert done.returncode == (code if world == 1 else 1)
    assert len(ours) == 1, done.stdout + done.stderr
    if world == 1:
        assert len(done.stderr.strip().splitlines()) <= 2 and "Traceback" not in done.stderr
    status = folder(config) / "status.json"
    if status.exists():
        assert json.loads(status.read_text())["exit_code"] == code


def test_precision_pinned_against_the_launcher_is_a_conflict(work):
    done = train(work / "bad", settings(work, "conflict", train={"precision": "bf16"}), 2, cache=work / "cache")
    assert done.returncode == 1 and "train.precision is bf16" in done.stderr and "mixed_precision no" in done.stderr


def test_fit_from_python_may_be_called_again_with_another_task_and_after_an_error(tmp_path):
    run_program("repeated", 2, str(tmp_path))  # it asserts on every rank


def test_a_closed_or_narrow_standard_output_costs_no_training(work):
    config = settings(work, "no reader", track={"log_every": 1})
    command = train_command(work / "no reader", config, 1)
    env = {**environment(1, work / "cache"), "PYTHONIOENCODING": "ascii"}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, env=env, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert "step 14/14" in (folder(config) / "logs" / "rank-0.log").read_text()


@pytest.mark.parametrize("root", ["/proc/nope", "a file"])
def test_a_run_root_that_cannot_be_written_is_a_line(work, root):
    (work / "a file").write_text("")
    config = settings(work, "nowhere")
    config["run"]["root"] = root if root.startswith("/") else str(work / root)
    done = train(work / "nowhere", config, 1, cache=work / "cache")
    assert done.returncode == 2 and done.stderr.startswith("run.root: "), done.stderr
    assert len(done.stderr.splitlines()) == 1

"""The promises P1, P3 and P4 for any program: its runs on any number of ranks, whole, cut off and gone on with."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import torch
from launch import HERE, ROOT, environment, train_command
from safetensors.torch import load_file

STRUCK = HERE / "struck.py"
CURVE = ("train/loss", "train/grad_norm", "train/lr", "eval/", "test/")
TRAIN = ROOT / "train.py"
KILLED = {"site": "step", "kind": "kill", "rank": 1, "step": 8}


def short(**sections: dict[str, Any]) -> dict[str, Any]:
    """14 steps of builtin:tiny on 100 rows in windows of 16; an evaluation every 5, a checkpoint every 3."""
    made: dict[str, Any] = {
        "run": {"seed": 5},
        "data": {"path": "builtin:sms", "max_train_examples": 100},
        "model": {"path": "builtin:tiny", "dropout": 0.0},
        "batch": {"size": 16},
        "optim": {"lr": 1e-3},
        "train": {"epochs": 2},
        "eval": {"every": 5, "max_examples": 61, "train_examples": 33},
        "checkpoint": {"every": 3},
        "track": {"wandb": "disabled", "log_every": 1},
    }
    for section, values in sections.items():
        made[section] = {**made.get(section, {}), **values}
    return made


class Runs:
    """The runs of one program with one configuration, each made once, in folders of their own below `work`."""

    def __init__(self, work: Path, config: dict[str, Any], program: Path = TRAIN) -> None:
        self.work = work
        self.config = config
        self.program = program
        self.made: dict[str, Path] = {}

    def start(
        self, name: str, world: int, budget: int = 150, fault: dict[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the program to its end, however that comes."""
        config = {**self.config, "run": {**self.config["run"], "root": str(self.work)}}
        config["batch"] = {**config["batch"], "tokens_per_device": budget}
        command = train_command(self.work / f"{name}-config", config, world, "--run.name", name, program=STRUCK)
        command.insert(command.index(str(STRUCK)) + 1, str(self.program))
        env = {**environment(world, self.work / "cache"), "FAULT": json.dumps(fault or {})}
        process = subprocess.Popen(
            command, env=env, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=180)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command, process.returncode, output)

    def whole(self, world: int, budget: int = 150) -> Path:
        """The folder of a run that nothing happened to."""
        name = f"whole-{world}-{budget}"
        if name not in self.made:
            self.made[name] = self._finished(name, world, budget)
        return self.made[name]

    def cut(self) -> Path:
        """The folder of a run on 2 ranks that was killed in step 8."""
        if "cut" not in self.made:
            done = self.start("cut", 2, fault=KILLED)
            assert done.returncode != 0, done.stdout
            self.made["cut"] = self.work / "cut"
            assert [row["step"] for row in rows(self.made["cut"])][-1] == 7, done.stdout
        return self.made["cut"]

    def resumed(self, world: int, budget: int = 150) -> Path:
        """The folder of the run that was cut, started again."""
        name = f"resumed-{world}-{budget}"
        if name not in self.made:
            shutil.copytree(self.cut(), self.work / name)
            self.made[name] = self._finished(name, world, budget)
            assert status(self.made[name])["restarts"] == 1
        return self.made[name]

    def _finished(self, name: str, world: int, budget: int) -> Path:
        done = self.start(name, world, budget)
        assert done.returncode == 0, done.stdout
        assert status(self.work / name)["state"] == "completed"
        return self.work / name


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def status(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "status.json").read_text())
    return read


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_same_curve(reference: Path, other: Path, norms: float = 1e-5) -> None:
    """Each row has the same position and keys; its values agree to 1e-5, and gradient norms to `norms`, relatively."""
    ours, theirs = rows(reference), rows(other)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert {k for k in a if not k.startswith("perf/")} == {k for k in b if not k.startswith("perf/")}
        for key in ("epoch", "examples_seen", "tokens_seen"):
            assert a[key] == b[key], f"step {a['step']}: {key}"
        for key in a:
            if key.startswith(CURVE):
                near = norms if key == "train/grad_norm" else 1e-5
                same = math.isclose(a[key], b[key], rel_tol=near, abs_tol=1e-12)
                assert same, f"step {a['step']}: {key} {a[key]} and {b[key]}"


def assert_bit_equal(reference: Path, other: Path) -> None:
    """The weights of best/ and final/, and every row's numbers but timings."""
    for name in ("final", "best"):
        ours, theirs = weights(reference / name), weights(other / name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours), f"{name}/ differs"
    for a, b in zip(rows(reference), rows(other), strict=True):
        kept = {key for key in a if not key.startswith("perf/") and key != "time"}
        assert {key: a[key] for key in kept} == {key: b.get(key) for key in kept}

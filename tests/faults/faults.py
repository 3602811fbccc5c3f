"""Starting runs that meet a fault, and comparing what is left with a run that met none."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from launch import environment, train_command
from safetensors.torch import load_file

HOOKED = Path(__file__).resolve().parent / "hooked.py"


def settings(work: Path, name: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """21 steps of builtin:tiny with dropout: evaluations every 5, checkpoints every 3 steps, each step a row."""
    made: dict[str, Any] = {
        "run": {"name": name, "root": str(work / "runs"), "seed": 5},
        "data": {"path": "builtin:sms", "max_train_examples": 100},
        "model": {"path": "builtin:tiny", "dropout": 0.1},
        "batch": {"size": 16, "tokens_per_device": 256},
        "optim": {"lr": 1e-3},
        "train": {"epochs": 3},
        "eval": {"every": 5, "max_examples": 61},
        "checkpoint": {"every": 3},
        "track": {"wandb": "disabled", "log_every": 1},
    }
    for section, values in sections.items():
        made[section] = {**made.get(section, {}), **values}
    return made


class Started:
    """A run under way: the launcher, its ranks, and its folder."""

    def __init__(
        self,
        work: Path,
        config: dict[str, Any],
        world: int = 2,
        fault: dict[str, Any] | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        self.folder = Path(config["run"]["root"]) / config["run"]["name"]
        self.world = world
        env = {**environment(world, work / "cache"), "FAULT": json.dumps(fault or {}), **(variables or {})}
        self.output = work / f"{config['run']['name']}-{time.monotonic_ns()}.out"
        with open(self.output, "w") as out:
            self.launcher = subprocess.Popen(
                train_command(work / "configs" / config["run"]["name"], config, world, program=HOOKED),
                env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self, timeout: float = 120) -> int:
        """The launcher's exit code."""
        return self.launcher.wait(timeout)

    def finish(self) -> Started:
        """Wait for the end, which has to be a good one."""
        assert self.wait() == 0, self.text()
        return self

    def text(self) -> str:
        return self.output.read_text()

    def ranks(self) -> dict[int, psutil.Process]:
        """The processes of the ranks that are alive, by rank."""
        try:
            family = psutil.Process(self.launcher.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return {}
        found = {}
        for process in family:
            try:
                if HOOKED.name in " ".join(process.cmdline()) and "RANK" in process.environ():
                    found[int(process.environ()["RANK"])] = process
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def until(self, there: Callable[[], bool], seconds: float = 90) -> None:
        end = time.monotonic() + seconds
        while not there():
            assert self.launcher.poll() is None, f"the run ended too early\n{self.text()}"
            assert time.monotonic() < end, f"waited in vain\n{self.text()}"
            time.sleep(0.02)

    def until_step(self, step: int) -> None:
        self.until(lambda: any(row["step"] >= step for row in self.rows()))

    def until_text(self, text: str) -> None:
        self.until(lambda: text in self.text())

    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}\n")]

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return status

    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.folder / "final" / "model.safetensors")

    def kill(self) -> None:
        """Take everything down, at the end of a test."""
        for process in (*self.ranks().values(), self.launcher):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.launcher.wait()


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def assert_as_if_nothing_had_happened(clean: Started, other: Started) -> None:
    """Weights bit for bit, and every row's numbers, each step once."""
    ours, theirs = clean.weights(), other.weights()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours), "final weights differ"
    assert [row["step"] for row in clean.rows()] == [row["step"] for row in other.rows()]
    for a, b in zip(clean.rows(), other.rows(), strict=True):
        kept = {key for key in a if not key.startswith("perf/") and key != "time"}
        assert {key: a[key] for key in kept} == {key: b.get(key) for key in kept}
    assert other.status()["state"] == "completed"

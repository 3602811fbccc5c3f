"""Submitting slurm/*.sbatch as a user would, and looking at what comes of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import Cluster, sh
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
# builtin data and model, a row and a checkpoint often enough to be stopped between them
STEPS = 800
ARGUMENTS = {
    "train.max_steps": STEPS, "eval.every": 100, "eval.max_examples": 50, "checkpoint.every": 50, "track.log_every": 1,
    "track.wandb": "disabled", "data.max_train_examples": 1600,
}  # fmt: skip


class Jobs:
    """Jobs of one work folder; `launch` is the Accelerate configuration for gloo ranks on CPU."""

    def __init__(self, cluster: Cluster, work: Path, launch: Path, python: str) -> None:
        self.cluster = cluster
        self.work = work
        self.env = {
            "ISOSTEP_PYTHON": python, "ACCELERATE_CONFIG": str(launch), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0", "HF_HUB_OFFLINE": "1", "ISOSTEP_CACHE": str(work / "cache"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip

    def submit(
        self, name: str, *options: str, script: str = "train.sbatch", procs: int = 2, env: dict[str, str] | None = None,
        **changes: Any,
    ) -> Job:  # fmt: skip
        """sbatch OPTIONS slurm/SCRIPT --config configs/quickstart.yaml ..., from the repository's root."""
        arguments = {"run.root": self.work / "runs", "run.name": name, **ARGUMENTS, **changes}
        flat = [text for key, value in arguments.items() if value is not None for text in (f"--{key}", str(value))]
        log = self.work / f"{name}-%a.log" if script == "sweep.sbatch" else self.work / f"{name}.log"
        variables = {**self.cluster.env, **self.env, "PROCS_PER_NODE": str(procs), **(env or {})}
        command = ["sbatch", "--parsable", "--cpus-per-task=1", f"--output={log}", *options, f"slurm/{script}",
                   "--config", "configs/quickstart.yaml", *flat]  # fmt: skip
        done = sh(*command, cwd=ROOT, env=variables)
        return Job(self.cluster, done.strip(), self.work / "runs" / name, log)


class Job:
    """A submitted job."""

    def __init__(self, cluster: Cluster, number: str, folder: Path, log: Path) -> None:
        self.cluster = cluster
        self.number = number
        self.folder = folder
        self.log = log
        self.requeues = 0

    def state(self) -> str:
        return self.cluster.state(self.number)

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}\n")]

    def step(self) -> int:
        return max((row["step"] for row in self.rows()), default=0)

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return status

    def weights(self) -> dict[str, Any]:
        return load_file(self.folder / "final" / "model.safetensors")

    def until(self, there: Callable[[], bool], seconds: float = 120) -> None:
        self.cluster.until(there, seconds, lambda: f"job {self.number} is {self.state()}\n{self.text()[-4000:]}")

    def trains_on(self, steps: int = 4) -> None:
        """Wait until it has trained a few more steps, in this start."""
        before = self.step()
        self.until(self._runs)
        self.until(lambda: self.step() >= before + steps or self.state() != "RUNNING")
        assert self.state() == "RUNNING", self.text()[-4000:]

    def requeued(self) -> None:
        """Wait until it was started anew."""
        self.requeues += 1
        self.until(lambda: self._runs() and self.cluster.restarts(self.number) == self.requeues)

    def _runs(self) -> bool:
        """Whether it is running. Where it waits, it is spared SLURM's two minutes of it, but for the first seconds: the
        credential of the start before is being revoked then."""
        if self.state() == "PENDING":
            time.sleep(3)
            self.cluster.run("scontrol", "update", f"JobId={self.number}", "StartTime=now", check=False)
        return self.state() == "RUNNING"

    def ends(self) -> str:
        """Wait for the end; SLURM's state."""
        self.until(lambda: self.state() not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING"), 240)
        return self.state()

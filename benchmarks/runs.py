"""Starting isostep and the peer as a user would, on one or several gloo ranks, and reading their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PEER = Path(__file__).resolve().parent / "trainer.py"
CORES = 2  # what the benchmarks are sized for
# Accelerate starts gloo ranks on CPU under this type only: with MULTI_CPU and num_processes it starts one process.
LAUNCH = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "use_cpu": True,
    "mixed_precision": "no",
    "num_machines": 1,
    "machine_rank": 0,
    "main_process_port": 0,
}


def start(program: list[str], ranks: int, work: Path, threads: int | None = None) -> None:
    """Runs a Python program on `ranks` gloo ranks from the repository's root.

    Raises RuntimeError with the end of its output when it does not exit with 0.
    """
    if ranks == 1:
        command = [sys.executable, *program]
    else:
        launch = work / f"launch-{ranks}.yaml"
        launch.write_text(yaml.safe_dump({**LAUNCH, "num_processes": ranks}), encoding="utf-8")
        command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(launch), *program]
    environment = dict(
        os.environ,
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS=str(threads or max(1, CORES // ranks)),
    )
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode}: {' '.join(command)}\n{(done.stdout + done.stderr)[-4000:]}")


def run_isostep(config: dict[str, Any], ranks: int, work: Path, threads: int | None = None) -> Path:
    """Trains with train.py; returns the run folder. Raises RuntimeError when the run fails or on another world size."""
    name = config["run"]["name"]
    path = work / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    start(["train.py", "--config", str(path)], ranks, work, threads)
    folder = Path(config["run"]["root"], name)
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    if status["state"] != "completed" or status["world_size"] != ranks:
        raise RuntimeError(f"{folder}: completed on {ranks} rank(s) is wanted, status.json says {status}")
    return folder


def series(folder: Path) -> dict[str, dict[int, float]]:
    """{key: {step: value}} of a run's metrics.jsonl."""
    values: dict[str, dict[int, float]] = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for key, value in row.items():
            values.setdefault(key, {})[row["step"]] = value
    return values


def run_peer(arguments: dict[str, Any], ranks: int, work: Path, threads: int | None = None) -> dict[str, Any]:
    """Trains with transformers' Trainer (trainer.py's arguments by name, lists for several values); returns its JSON.

    Raises RuntimeError when the run fails or ran on another world size.
    """
    program = [str(PEER)]
    for key, value in arguments.items():
        program += ["--" + key.replace("_", "-"), *(map(str, value) if isinstance(value, list) else [str(value)])]
    start(program, ranks, work, threads)
    measured: dict[str, Any] = json.loads(Path(arguments["out"]).read_text(encoding="utf-8"))
    if measured["world_size"] != ranks:
        raise RuntimeError(f"{arguments['out']}: {ranks} rank(s) wanted, {measured['world_size']} ran")
    return measured

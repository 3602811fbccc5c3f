"""Start a program on several gloo ranks, or the product by its own launcher."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LAUNCH = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "use_cpu": True,
    "mixed_precision": "no",
    "num_machines": 1,
    "machine_rank": 0,
    "main_process_port": 0,
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(world: int, cache: Path | None = None) -> dict[str, str]:
    env = dict(os.environ, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
               OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="true")  # fmt: skip
    env.pop("WANDB_API_KEY", None)
    if cache is not None:
        env["ISOSTEP_CACHE"] = str(cache)
    return env


def run_program(name: str, world: int, *arguments: str, timeout: float = 120) -> None:
    """Run tests/distributed/<name>.py on `world` ranks of one gloo group; its assertions are the test."""
    port = str(free_port())
    ranks = []
    for rank in range(world):
        env = {**environment(world), "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
               "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
        command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [rank.communicate(timeout=timeout)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(outputs)


def train_command(
    folder: Path, config: dict[str, object], world: int, *overrides: str, program: Path = ROOT / "train.py"
) -> list[str]:
    """The command that trains `config` on `world` ranks: by python alone for one, by accelerate launch for more."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    command = [str(program), "--config", str(path), *overrides]
    if world == 1:
        return [sys.executable, *command]
    launch = folder / f"launch-{world}.yaml"
    launch.write_text(yaml.safe_dump({**LAUNCH, "num_processes": world}))
    return [str(Path(sys.executable).parent / "accelerate"), "launch", "--config_file", str(launch), *command]


def train(
    folder: Path,
    config: dict[str, object],
    world: int,
    *overrides: str,
    cache: Path | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """`train.py` with `config` on `world` ranks, to its end."""
    command = train_command(folder, config, world, *overrides)
    return subprocess.run(
        command, env=environment(world, cache), text=True, capture_output=True, timeout=timeout, cwd=ROOT
    )

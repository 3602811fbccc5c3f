"""`isostep predict` on several ranks: the same bytes, whatever their number and whoever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from launch import HERE, LAUNCH, ROOT, environment, free_port, train

pytestmark = pytest.mark.slow

WORDS = "free win call now lunch at home see you later prize claim go there".split()  # noqa: SIM905
ACCELERATE = str(Path(sys.executable).parent / "accelerate")
PROGRAM = str(HERE / "predicting.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained run whose ranks wait for each other for no longer than five seconds."""
    work = tmp_path_factory.mktemp("run")
    config: dict[str, object] = {
        "run": {"root": str(work), "name": "run", "timeout": 5}, "data": {"path": "builtin:sms", "max_length": 16},
        "model": {"path": "builtin:tiny"}, "batch": {"size": 8}, "train": {"max_steps": 1},
        "eval": {"max_examples": 8}, "track": {"wandb": "disabled"},
    }  # fmt: skip
    done = train(work, config, 1)
    assert done.returncode == 0, done.stderr
    return work / "run"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """5,000 short rows: three blocks."""
    draw = np.random.default_rng(0)
    rows = [{"id": i, "text": " ".join(draw.choice(WORDS, draw.integers(1, 5)))} for i in range(5000)]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def command(world: int, tmp_path: Path, *program: str) -> list[str]:
    if world == 1:
        return [sys.executable, *program]
    path = tmp_path / f"launch-{world}.yaml"
    path.write_text(yaml.safe_dump({**LAUNCH, "num_processes": world}))
    return [ACCELERATE, "launch", "--config_file", str(path), *program]


def arguments(run: Path, source: Path, output: Path) -> list[str]:
    return [str(run), "--input", str(source), "--output", str(output)]


def call(world: int, tmp_path: Path, *program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(world, tmp_path, *program), env=environment(world), cwd=ROOT, text=True,
                          capture_output=True, timeout=120)  # fmt: skip


def parts(output: Path) -> list[Path]:
    return list(output.parent.glob(f".{output.name}.parts/*/*.json"))


def until_answered(blocks: int, output: Path) -> None:
    limit = time.monotonic() + 60
    while len(parts(output)) < blocks:
        assert time.monotonic() < limit, "no block was answered"
        time.sleep(0.05)


def test_the_output_is_the_same_on_one_two_and_three_ranks(run: Path, source: Path, tmp_path: Path) -> None:
    found = []
    for world in (1, 2, 3):
        output = tmp_path / f"{world}.jsonl"
        done = call(world, tmp_path, "-m", "isostep", "predict", *arguments(run, source, output))
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"5000 rows written to {output}\n"  # by the first rank alone
        found.append(output.read_bytes())
    assert len(set(found)) == 1
    rows = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == list(range(5000)) and all("prediction" in row for row in rows)
    assert not list(tmp_path.glob(".*"))


def test_after_a_kill_the_same_command_goes_on(run: Path, source: Path, tmp_path: Path) -> None:
    """Killed on two ranks, again on one, and finished on three."""
    whole, output = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert call(1, tmp_path, PROGRAM, "250", "0", *arguments(run, source, whole)).returncode == 0
    for world, blocks in ((2, 3), (1, 6)):
        program = command(world, tmp_path, PROGRAM, "250", "0.3", *arguments(run, source, output))
        started = subprocess.Popen(program, env=environment(world), cwd=ROOT)
        until_answered(blocks, output)
        ranks = psutil.Process(started.pid).children(recursive=True)
        started.send_signal(signal.SIGKILL)
        started.wait()
        psutil.wait_procs(ranks, timeout=10)
        assert not output.exists() and len(parts(output)) < 20
    before = len(parts(output))
    done = call(3, tmp_path, PROGRAM, "250", "0", *arguments(run, source, output))
    assert done.returncode == 0, done.stderr
    assert f"5000 rows written to {output}, {250 * before} of them answered by an earlier start" in done.stdout
    assert output.read_bytes() == whole.read_bytes() and not list(tmp_path.glob(".*"))


def test_what_is_wrong_in_any_ranks_rows_is_told_once(run: Path, source: Path, tmp_path: Path) -> None:
    lines = source.read_text().splitlines(keepends=True)
    for row in (300, 4200):
        broken = tmp_path / f"broken-{row}.jsonl"
        broken.write_text("".join([*lines[:row], '{"id": 0, "text": null}\n', *lines[row:]]))
        output = tmp_path / "out.jsonl"
        output.write_text("before")
        done = call(2, tmp_path, PROGRAM, "250", "0.05", *arguments(run, broken, output))
        assert done.returncode == 1  # the launcher's, whatever the ranks' is
        assert done.stderr.count(f"{broken}:{row + 1}: missing text") == 1
        assert "src/isostep" not in done.stderr  # the only traceback is the launcher's own
        assert output.read_text() == "before" and not list(tmp_path.glob(".*"))


@pytest.fixture
def two(run: Path, source: Path, tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks without a launcher over them, in the middle of their work."""
    output = tmp_path / "out.jsonl"
    program = [sys.executable, PROGRAM, "250", "0.3", *arguments(run, source, output)]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            program,
            env={**environment(2), **shared, "RANK": rank, "LOCAL_RANK": rank},
            text=True,
            stderr=subprocess.PIPE,
        )
        for rank in ("0", "1")
    ]
    until_answered(2, output)
    yield ranks
    for rank in ranks:
        rank.kill()
        rank.communicate()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_stands_still_does_not_keep_the_others(
    two: list[subprocess.Popen[str]], tmp_path: Path, how: signal.Signals
) -> None:
    os.kill(two[1].pid, how)
    _, told = two[0].communicate(timeout=60)  # 16 blocks of 0.3 s, and five seconds of waiting
    assert two[0].returncode == 1 and "TimeoutError" in told and "has not moved for 5 s" in told
    assert not (tmp_path / "out.jsonl").exists() and parts(tmp_path / "out.jsonl")

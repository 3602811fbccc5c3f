"""P5 and P10: saves that fail, checkpoints that were damaged, files that would run code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from faults import assert_as_if_nothing_had_happened, settings
from isostep.checkpoint.store import MANIFEST, checkpoints, describe, verify


def steps(run) -> list[int]:
    return [verify(folder)["step"] for folder in checkpoints(run.folder / "checkpoints")]


@pytest.mark.parametrize("kind", ["raise", "full"])
@pytest.mark.parametrize("rank", [0, 1])
def test_p5_a_save_that_fails_on_one_rank_fails_on_all_and_the_one_before_is_intact(work, start, clean, rank, kind):
    config = settings(work, f"save fails {rank} {kind}")
    site = "write" if kind == "raise" else "flush"
    cut = start(config, fault={"site": site, "kind": kind, "rank": rank, "step": 6})
    cut.until_step(6)
    began = time.monotonic()
    assert cut.wait(20) != 0 and time.monotonic() - began < 12
    assert steps(cut) == [3] and not list((cut.folder / "checkpoints").glob(".*"))
    status = cut.status()
    assert (status["state"], status["exit_code"], status["step"]) == ("failed", 1, 6)
    if kind == "full":
        lines = [line for line in cut.text().splitlines() if "the disk is full" in line and "needs" in line]
        assert len(lines) == 1, cut.text()
    else:
        assert "injected fault" in status["reason"]
    if rank == 1:
        assert_as_if_nothing_had_happened(clean(2), start(config).finish())


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_p5_a_full_disk_is_one_line_and_the_checkpoint_before_it_is_intact(work, start):
    disk = work / "small disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=18m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("a tmpfs can't be mounted here")
    try:
        config = settings(work, "full", eval={"every": 1000}, checkpoint={"every": 3, "keep": 9})
        config["run"]["root"] = str(disk)
        cut = start(config)
        assert cut.wait() != 0
        lines = [line for line in cut.text().splitlines() if "needs" in line and " MB" in line]
        assert len(lines) == 1, cut.text()
        assert cut.status()["exit_code"] == 1
        assert steps(cut) == [6, 3] and not list((cut.folder / "checkpoints").glob(".*"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture(scope="module")
def preempted(work):
    """A run stopped at step 9 with checkpoints of steps 6 and 9."""
    from faults import Started

    cut = Started(work, settings(work, "base"), fault={"site": "step", "kind": "kill", "rank": 0, "step": 11})
    assert cut.wait() != 0
    assert steps(cut) == [9, 6]
    yield cut
    cut.kill()


def copy_of(preempted, name: str) -> Path:
    target = preempted.folder.parent / name
    shutil.copytree(preempted.folder, target)
    return target


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "weights cut off": ("model.safetensors", lambda path: os.truncate(path, path.stat().st_size // 2)),
    "a flipped bit in the optimizer": ("optimizer.safetensors", flip),
    "no rank file": ("rank-00001.safetensors", Path.unlink),
    "an empty manifest": (MANIFEST, lambda path: os.truncate(path, 0)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_p5_a_damaged_checkpoint_is_set_aside_by_name_and_the_one_before_is_used(work, start, clean, preempted, damage):
    folder = copy_of(preempted, damage)
    name, harm = DAMAGE[damage]
    harm(folder / "checkpoints" / "step-00000009" / name)
    again = start(settings(work, damage)).finish()
    warning = [line for line in again.text().splitlines() if line.startswith("warning:") and name in line]
    assert len(warning) == 1 and "resumed from" in again.text() and "step-00000006" in again.text()
    assert_as_if_nothing_had_happened(clean(2), again)


def test_an_unusable_checkpoint_asked_for_by_name_is_exit_code_6(work, start, preempted):
    folder = copy_of(preempted, "by name")
    asked = folder / "checkpoints" / "step-00000009"
    flip(asked / "model.safetensors")
    config = settings(work, "by name")
    config["run"]["resume"] = str(asked)
    refused = start(config, 1)
    assert refused.wait() == 6
    assert "model.safetensors" in refused.text() and "Traceback" not in refused.text()
    config["run"]["resume"] = str(folder / "checkpoints" / "step-00000006")
    assert "step-00000006" in start(config).finish().text()


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return (Path.touch, (self.canary,))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "rank-00000.safetensors"])
def test_p10_no_file_of_a_checkpoint_is_unpickled_even_with_a_manifest_that_vouches_for_it(
    work, start, preempted, tmp_path, name
):
    folder = copy_of(preempted, f"bomb in {name}")
    canary = tmp_path / "canary"
    place = folder / "checkpoints" / "step-00000009"
    (place / name).write_bytes(pickle.dumps(Bomb(canary)))
    manifest = json.loads((place / MANIFEST).read_text())
    entry = describe(place / name)
    manifest["files"][name] = {"size": entry.size, "xxh3": entry.xxh3}
    (place / MANIFEST).write_text(json.dumps(manifest))
    assert verify(place)["step"] == 9
    loaded = start(settings(work, f"bomb in {name}"), 1)
    assert loaded.wait() == 6, loaded.text()
    assert name in loaded.text()
    assert not canary.exists()

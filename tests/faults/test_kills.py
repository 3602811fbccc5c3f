"""P3, P4, P5: killed at any moment, the same command goes on, and nothing shows that it was killed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from faults import assert_as_if_nothing_had_happened, gone, settings
from isostep.checkpoint.saving import find
from isostep.checkpoint.store import checkpoints, step_of, verify


@pytest.mark.parametrize("world", [2, 3])
def test_p3_kill_9_of_one_rank_in_a_step(work, start, clean, world):
    config = settings(work, f"kill-{world}")
    cut = start(config, world, fault={"site": "step", "kind": "kill", "rank": world - 1, "step": 11})
    cut.until_step(10)
    ranks, began = list(cut.ranks().values()), time.monotonic()
    assert cut.wait(30) != 0 and time.monotonic() - began < 15
    assert gone(ranks, 1)
    before = (cut.folder / "metrics.jsonl").read_text().splitlines()
    assert [row["step"] for row in cut.rows()] == list(range(1, 11)), "every logged step up to the kill is there"
    again = start(config, world).finish()
    assert_as_if_nothing_had_happened(clean(world), again)
    assert (again.folder / "metrics.jsonl").read_text().splitlines()[:9] == before[:9], (
        "rows up to step 9 are untouched"
    )
    assert again.status()["restarts"] == 1


@pytest.mark.parametrize("stage", ["begin", "write", "flush", "commit", "committed"])
def test_p5_kill_9_of_rank_0_at_every_stage_of_a_save(work, start, stage):
    config = settings(work, f"kill-in-{stage}")
    cut = start(config, fault={"site": stage, "kind": "kill", "rank": 0, "step": 6})
    assert cut.wait() != 0
    root = cut.folder / "checkpoints"
    assert [step_of(folder) for folder in checkpoints(root)] == ([6, 3] if stage == "committed" else [3])
    for folder in checkpoints(root):
        verify(folder)
    newest = find(root, "auto")
    assert newest is not None and step_of(newest) == (6 if stage == "committed" else 3)
    assert not list(root.glob(".*")), "what was half written is swept at the next start"


def test_kill_9_of_the_launcher_takes_the_ranks_with_it(work, start, clean):
    config = settings(work, "orphans")
    cut = start(config, fault={"site": "step", "kind": "slow", "seconds": 30, "rank": 0, "step": 8})
    cut.until_text("slow in step")
    ranks = list(cut.ranks().values())
    assert len(ranks) == 2
    os.kill(cut.launcher.pid, signal.SIGKILL)
    assert gone(ranks, 10)
    assert_as_if_nothing_had_happened(clean(2), start(config).finish())


@pytest.mark.parametrize("world", [1, 2, 4])
def test_p4_resumed_on_any_number_of_ranks_it_is_the_same_curve(work, start, world):
    # with rows every 4 steps the checkpoint of step 9 holds half of a row's loss
    sections = {"model": {"dropout": 0.0}, "track": {"log_every": 4}}
    reference = start(settings(work, f"whole-for-{world}", **sections)).finish()
    config = settings(work, f"elastic-{world}", **sections)
    cut = start(config, fault={"site": "step", "kind": "kill", "rank": 1, "step": 11})
    assert cut.wait() != 0
    again = start(config, world).finish()
    assert [row["step"] for row in again.rows()] == [row["step"] for row in reference.rows()]
    for a, b in zip(reference.rows(), again.rows(), strict=True):
        for key in ("train/loss", "train/grad_norm", "eval/loss", "train/lr"):
            if key in a:
                assert b[key] == pytest.approx(a[key], rel=1e-5), f"step {a['step']}: {key}"
        assert (a["epoch"], a["examples_seen"], a["tokens_seen"]) == (b["epoch"], b["examples_seen"], b["tokens_seen"])
    assert again.status()["world_size"] == world

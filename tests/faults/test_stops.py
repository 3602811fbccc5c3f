"""P6: asked to stop by whatever means, all ranks save the same step and leave; then the same command goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launch import environment, train_command

from faults import Started, assert_as_if_nothing_had_happened, settings
from isostep.checkpoint.store import checkpoints, verify


def assert_preempted(run: Started) -> None:
    assert run.wait(60) != 0
    status = run.status()
    assert (status["state"], status["exit_code"]) == ("preempted", 75), run.text()
    newest = checkpoints(run.folder / "checkpoints")[0]
    assert verify(newest)["step"] == status["step"]
    evaluation_is_due = status["step"] % 5 == 0  # whose row is written after the resume
    assert status["step"] - evaluation_is_due == max(row["step"] for row in run.rows()), "nothing trained is lost"


HOW = {
    "SIGTERM to the launcher": lambda run: os.kill(run.launcher.pid, signal.SIGTERM),
    "SIGINT to the launcher": lambda run: os.kill(run.launcher.pid, signal.SIGINT),
    "SIGTERM to one worker": lambda run: run.ranks()[1].send_signal(signal.SIGTERM),
    "SIGUSR1 to one worker": lambda run: run.ranks()[0].send_signal(signal.SIGUSR1),
    "a STOP file": lambda run: (run.folder / "STOP").touch(),
}


@pytest.mark.parametrize("how", HOW)
def test_p6_a_wish_to_stop_saves_the_step_and_the_same_command_goes_on(work, start, clean, how):
    config = settings(work, how, checkpoint={"every": 1000})
    cut = start(config, fault={"site": "step", "kind": "slow", "seconds": 2, "rank": 0, "step": 8})
    cut.until_text("slow in step")
    HOW[how](cut)
    assert_preempted(cut)
    assert_as_if_nothing_had_happened(clean(2), start(config).finish())


@pytest.mark.parametrize("how", ["SIGUSR1 to one worker", "a STOP file"])  # of the rank that is slow: it asks last
def test_p6_inside_an_evaluation_which_is_made_after_the_resume(work, start, clean, how):
    config = settings(work, f"evaluation, {how}", checkpoint={"every": 1000})
    cut = start(config, fault={"site": "evaluation", "kind": "slow", "seconds": 2, "rank": 0, "step": 10})
    cut.until_text("slow in evaluation")
    HOW[how](cut)
    assert cut.wait(60) != 0
    assert (cut.status()["state"], cut.status()["step"]) == ("preempted", 10), cut.text()
    assert [row["step"] for row in cut.rows()][-1] == 9, "the row of step 10 is written when it is evaluated"
    assert_as_if_nothing_had_happened(clean(2), start(config).finish())


def test_p6_in_preprocessing_before_anything_is_trained(work, start, clean):
    config = settings(work, "preprocessing")
    cut = start(config, fault={"site": "preprocessing", "kind": "slow", "seconds": 30, "rank": 0})
    cut.until_text("slow in preprocessing")
    os.kill(cut.launcher.pid, signal.SIGTERM)
    assert cut.wait(20) != 0
    assert (cut.status()["state"], cut.status()["exit_code"], cut.status()["step"]) == ("preempted", 75, 0)
    assert_as_if_nothing_had_happened(clean(2), start(config).finish())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_p6_while_torch_is_still_imported(work, number):
    """Nothing of isostep's own handles signals yet: the default would end the process."""
    command = train_command(work, settings(work, f"early {number}"), 1)
    run = subprocess.Popen(
        command, env=environment(1, work / "cache"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    torch_is_read = f"/proc/{run.pid}/maps"
    while "libtorch" not in Path(torch_is_read).read_text() and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(number)
    said = run.communicate(timeout=60)[0].decode()
    assert run.returncode == 75 and f"stopped by {number.name} before the first step" in said, said


def test_a_second_signal_during_the_save_changes_nothing(work, start, clean):
    config = settings(work, "twice", checkpoint={"every": 1000})
    cut = start(config, fault={"site": "write", "kind": "slow", "seconds": 3, "rank": 0})
    cut.until_step(5)
    cut.ranks()[1].send_signal(signal.SIGTERM)
    cut.until_text("slow in write")
    for process in cut.ranks().values():
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGUSR1)
    assert_preempted(cut)
    assert len(checkpoints(cut.folder / "checkpoints")) == 1
    assert_as_if_nothing_had_happened(clean(2), start(config).finish())


def test_a_second_ctrl_c_within_five_seconds_aborts_and_the_older_checkpoint_is_intact(work, start):
    config = settings(work, "ctrl-c twice")
    cut = start(config, fault={"site": "write", "kind": "slow", "seconds": 30, "rank": 0, "step": 6})
    cut.until_text("slow in write")
    cut.ranks()[0].send_signal(signal.SIGINT)
    cut.ranks()[0].send_signal(signal.SIGINT)
    assert cut.wait(20) != 0
    newest = checkpoints(cut.folder / "checkpoints")[0]
    assert verify(newest)["step"] == 3


def test_a_save_that_outlasts_the_grace_period_costs_only_itself(work, start, clean):
    config = settings(work, "grace")
    cut = start(
        config,
        fault={"site": "flush", "kind": "slow", "seconds": 60, "rank": 0, "step": 6},
        variables={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3", "PET_SHUTDOWN_TIMEOUT": "3"},
    )
    cut.until_text("slow in flush")
    os.kill(cut.launcher.pid, signal.SIGTERM)
    assert cut.wait(40) != 0
    assert [verify(folder)["step"] for folder in checkpoints(cut.folder / "checkpoints")] == [3]
    assert_as_if_nothing_had_happened(clean(2), start(config).finish())

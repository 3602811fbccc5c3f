"""Ranks that hang, loaders that fail, trackers that are down, and two writers for one folder."""

from __future__ import annotations

import time

from faults import assert_as_if_nothing_had_happened, gone, settings


def test_a_rank_that_hangs_is_named_with_its_phase_and_the_run_ends_within_the_timeout(work, start, clean):
    config = settings(work, "hang")
    config["run"]["timeout"] = 12
    cut = start(config, fault={"site": "step", "kind": "stop", "rank": 1, "step": 8})
    cut.until_step(7)
    waiting = cut.ranks()[0]
    assert gone([waiting], 20), "the rank that waited leaves within the timeout of 12 s"
    assert cut.wait(60) != 0  # the launcher gives the stopped one 30 s more
    assert "rank 1 in step (step 8, silent for" in cut.text(), cut.text()
    assert (cut.folder / "logs" / "rank-0.stacks").stat().st_size > 0
    assert cut.status()["state"] == "failed" and cut.status()["reason"].startswith("lost contact with another rank: ")
    assert_as_if_nothing_had_happened(clean(2), start(settings(work, "hang")).finish())


def test_an_error_of_one_rank_is_told_from_lost_contact(work, start):
    """slurm/train.sbatch starts again what lost contact; an error would only come again."""
    cut = start(settings(work, "own error"), fault={"site": "step", "kind": "raise", "rank": 1, "step": 8})
    assert cut.wait(60) != 0
    assert cut.status()["state"] == "failed" and cut.status()["reason"].startswith("rank 1 failed, see its output: ")
    assert "injected fault" in cut.text()


def test_a_loaders_worker_that_fails_is_one_error_that_names_the_rows(work, start):
    config = settings(work, "worker", data={"workers": 1})
    cut = start(config, fault={"site": "worker", "kind": "raise", "rank": 1})
    began = time.monotonic()
    assert cut.wait(60) != 0 and time.monotonic() - began < 60
    assert "can't be read: injected fault" in (cut.text() + (cut.folder / "logs" / "rank-1.log").read_text())


def test_a_second_start_in_a_folder_in_use_is_refused_by_the_holders_name_and_costs_the_first_nothing(
    work, start, clean
):
    config = settings(work, "twice in one")
    first = start(config, fault={"site": "step", "kind": "slow", "seconds": 25, "rank": 0, "step": 8})
    first.until_text("slow in step")
    second = start(config, 1)
    assert second.wait(60) == 5
    assert f"in use by process {first.ranks()[0].pid}" in second.text() and "Traceback" not in second.text()
    assert_as_if_nothing_had_happened(clean(2), first.finish())


def test_p8_a_wandb_server_that_is_down_costs_its_timeout_and_nothing_else(work, start, clean):
    config = settings(work, "tracker", track={"wandb": "online"})
    down = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    run = start(config, variables=down).finish()
    assert "W&B could not start online" in run.text()
    assert list((run.folder / "wandb").glob("offline-run-*/*.wandb"))
    assert_as_if_nothing_had_happened(clean(2), run)
    for path in run.folder.rglob("*"):
        assert not path.is_file() or b"0" * 40 not in path.read_bytes(), f"the key stands in {path}"

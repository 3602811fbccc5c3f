"""P8: W&B's server goes away in mid-run, the run is killed in mid-run; metrics.jsonl is the record, W&B its mirror."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from wandb_file import rows, run_ids
from wandb_server import WandbServer

from faults import assert_as_if_nothing_had_happened, settings

PATIENCE = 5  # seconds, for the client's end


@pytest.fixture
def server():
    made = WandbServer()
    yield made
    made.close()


def test_p8_a_wandb_server_that_goes_away_in_mid_run_costs_a_bounded_wait_at_the_end(
    work, start, clean, server, monkeypatch
):
    program = Path(__file__).with_name("impatient.py")
    slow = {"site": "step", "kind": "slow", "seconds": 2, "rank": 0, "step": 8}
    known = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": server.url, "FINISH_TIMEOUT": str(PATIENCE)}
    with monkeypatch.context() as patch:
        patch.setattr("faults.HOOKED", program)
        run = start(settings(work, "gone", track={"wandb": "online"}), fault=slow, variables=known)
    run.until_text("slow in step")
    assert "UpsertBucket" in server.asked, "the client has started online"
    server.close()
    run.until(lambda: run.status()["state"] == "completed")
    assert run.wait(PATIENCE + 25) == 0, run.text()
    waited = (run.folder / "logs" / "rank-0.log").stat().st_mtime - run.status()["updated"]
    assert PATIENCE <= waited < PATIENCE + 5, "the client's end comes between the two"
    assert "W&B: online" in run.text() and "W&B could not end its run" in run.text(), run.text()
    after = [row["time"] for row in run.rows() if row["step"] > 8]
    assert max(b - a for a, b in itertools.pairwise(after)) < 2, "the loop waits for nobody"
    assert_as_if_nothing_had_happened(clean(2), run)


def test_p8_a_wandb_client_whose_service_dies_costs_a_warning(work, start, clean):
    slow = {"site": "step", "kind": "slow", "seconds": 2, "rank": 0, "step": 2}
    run = start(settings(work, "service", track={"wandb": "offline"}), fault=slow)
    run.until_text("slow in step")
    services = [process for process in run.ranks()[0].children() if "wandb" in process.name()]
    assert len(services) == 1
    services[0].kill()
    assert_as_if_nothing_had_happened(clean(2), run.finish())
    assert run.text().count("warning: W&B failed") == 1, run.text()


def test_a_killed_run_is_one_wandb_run_with_each_row_once_in_each_part(work, start, clean):
    config = settings(work, "mirror", track={"wandb": "offline"})
    cut = start(config, fault={"site": "step", "kind": "kill", "rank": 0, "step": 11})
    assert cut.wait(60) != 0
    assert [row["step"] for row in cut.rows()] == list(range(1, 11)), "every logged step up to the kill is there"
    again = start(config).finish()
    assert_as_if_nothing_had_happened(clean(2), again)

    files = sorted(again.folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2, "one for each start: rank 1 tracks nothing"
    own = (again.folder / "wandb" / "run-id").read_text()
    assert {file.name for file in files} == {f"run-{own}.wandb"} and run_ids(files[1]) == {own}
    first, second = ([row["step"] for row in rows(file)] for file in files)
    assert first == list(range(1, len(first) + 1)), (
        "the client writes late: a kill leaves some of the first rows, or none"
    )
    assert second == list(range(10, 22)), "the second goes on from the checkpoint of step 9"
    recorded = {row["step"]: row for row in again.rows()}
    for row in rows(files[1]):
        mirrored = {key: value for key, value in row.items() if not key.startswith("_")}
        assert mirrored == {key: recorded[row["step"]][key] for key in mirrored} and "train/loss" in mirrored

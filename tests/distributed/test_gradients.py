"""P1 at its root: gradients, batches and rates of a step do not depend on how the step is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import run_program
from small import KINDS

from isostep.optim import learning_rate_factor


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")

    def report(world: int):
        path = Path(folder, f"world-{world}.json")
        if not path.exists():
            run_program("gradients", world, str(folder))
        return json.loads(path.read_text())

    return report


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_gradients_equal_one_plain_backward_in_float64(reports, world):
    report = reports(world)
    assert set(report) == set(KINDS), "gradients.py goes through all kinds of task"
    for kind in KINDS:
        assert set(report[kind]) == {"16", "70", "100000"}, "and asserts 1e-10 for each budget and window"


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_window_ids_and_rates_are_the_same_for_any_task_world_size_and_budget(reports, world):
    reference = reports(1)["classification"]["100000"]
    for kind in KINDS:
        for budget in ("16", "70", "100000"):
            assert reports(world)[kind][budget] == reference


def test_the_scheduler_moves_once_per_optimizer_step(reports):
    wanted = [0.5 * learning_rate_factor(step, "linear", 2, 6) for step in range(6)]
    assert wanted == [0.0, 0.25, 0.5, 0.375, 0.25, 0.125]
    for world in (1, 2, 3, 4):
        assert reports(world)["classification"]["16"]["rates"] == wanted

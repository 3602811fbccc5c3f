"""P2: every example exactly once on any world size, and a loss that does not depend on the micro-batch."""

from __future__ import annotations

import pytest
from launch import run_program


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_p2_an_evaluation_equals_the_rows_taken_one_by_one(world):
    run_program("evaluation", world)  # it asserts on every rank

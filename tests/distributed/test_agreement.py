"""Errors and slow preparation over ranks."""

from __future__ import annotations

import pytest
from launch import run_program


@pytest.mark.parametrize("world", [1, 3])
def test_an_error_on_one_rank_is_an_error_on_all_and_slow_preparation_is_waited_for(world):
    run_program("agreement", world)  # it asserts on every rank


@pytest.mark.parametrize("world", [2, 3])
def test_a_wish_to_stop_is_heard_at_the_same_call_on_all_ranks(world):
    run_program("stopping", world)

"""P3 at random: a run that is killed again and again, at moments drawn from a seed, ends as if it had never been."""

from __future__ import annotations

import os
import random
import time

import pytest

from faults import assert_as_if_nothing_had_happened, gone, settings

KILLS = int(os.environ.get("SOAK_KILLS", "5"))  # make soak: 20
WORLDS = [2, 4] if KILLS > 5 else [2]


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_p3_killed_at_random_moments_and_started_again_each_time(work, start, clean, world):
    config = settings(work, f"soak-{world}")
    draw, killed = random.Random(11), 0
    # each step takes 0.3 s, so that about half of the kills fall into training, saving and evaluation
    slow = {"site": "step", "kind": "slow", "seconds": 0.3, "rank": 0, "times": 10**6}
    for _ in range(KILLS):
        run = start(config, world, fault=slow)
        end = time.monotonic() + draw.uniform(4, 20)
        while time.monotonic() < end and run.launcher.poll() is None:
            time.sleep(0.05)
        if run.launcher.poll() is not None:
            assert run.wait() == 0, run.text()  # it had got so far that it could finish
            break
        victims = list(run.ranks().values())
        for process in (*victims, run.launcher):
            process.kill()
        assert gone(victims, 10)
        killed += 1
    last = start(config, world).finish()
    assert_as_if_nothing_had_happened(clean(world), last)
    assert killed > 0

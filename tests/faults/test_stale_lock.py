"""P8: a lock whose holder was killed is taken over by the next start, on all ranks."""

from __future__ import annotations

import json

from faults import assert_as_if_nothing_had_happened, gone, settings


def test_p8_the_lock_of_a_run_that_was_killed_whole_is_taken_over(work, start, clean):
    config = settings(work, "stale lock")
    cut = start(config, fault={"site": "step", "kind": "slow", "seconds": 30, "rank": 1, "step": 11})
    cut.until_text("slow in step")
    ranks, lock = cut.ranks(), cut.folder / ".lock"
    cut.kill()
    assert gone(list(ranks.values()), 10)
    assert json.loads(lock.read_text())["pid"] == ranks[0].pid, "nobody was left to give it back"
    again = start(config).finish()
    assert_as_if_nothing_had_happened(clean(2), again)
    assert again.status()["restarts"] == 1 and not lock.exists()

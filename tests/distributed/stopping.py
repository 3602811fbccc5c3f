"""Asking for a stop: all ranks hear of it at the same call, soon, and short steps are not asked after each."""

from __future__ import annotations

import time
from pathlib import Path

from isostep.config import Config
from isostep.train import stop as module
from isostep.train.ranks import Ranks, end_process_group, start
from isostep.train.stop import Stop


def heard_at(ranks: Ranks, seconds: list[float], wish: int) -> int:
    """The call at which this rank hears of the wish that the last rank has before call `wish`; calls as far apart as
    `seconds` says, with another pace announced where it changes."""
    stop = Stop(Path("nowhere"), ranks.rank, ranks.new_group())
    for call, pause in enumerate(seconds):
        if call and pause != seconds[call - 1]:
            stop.new_pace()
        time.sleep(pause * (1 + ranks.rank / 10))
        if call == wish and ranks.rank == ranks.world_size - 1:
            stop.reason = "a test"
        if stop.poll():
            stop.drain()
            return call
    raise AssertionError("the wish was never heard")


def main() -> None:
    config = Config.load(overrides=["--run.name", "s", "--data.path", "builtin:sms", "--model.path", "builtin:tiny"])
    _, ranks = start(config)
    for wish in (0, 7, 40, 41, 50):
        heard = heard_at(ranks, [0.002] * 90, wish)
        assert len(set(ranks.gather(heard))) == 1, f"ranks stopped at different calls: {ranks.gather(heard)}"
        assert wish < heard <= wish + module.MOST_CALLS + 1, (wish, heard)
    # long steps after short ones: each is asked after at once, or a stop would come too late
    heard = heard_at(ranks, [0.002] * 43 + [0.3] * 9, 45)
    assert set(ranks.gather(heard)) == {46}, ranks.gather(heard)
    asked = []
    stop = Stop(Path("nowhere"), ranks.rank, ranks.new_group())
    whole = stop._ask
    stop._ask = lambda: (asked.append(1), whole())[1]  # type: ignore[method-assign]
    for _ in range(160):
        time.sleep(0.001)
        assert not stop.poll()
    stop.drain()
    assert len(asked) < 160 / 4, f"{len(asked)} reductions in 160 calls"
    end_process_group()


if __name__ == "__main__":
    main()

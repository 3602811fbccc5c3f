"""On every rank: an error on any rank is an error on all, and preparation may outlast the collectives' timeout."""

from __future__ import annotations

import time

from isostep.config import Config
from isostep.errors import DataError
from isostep.train.ranks import PeerError, Ranks, start


def main() -> None:
    config = Config.load(overrides=["--run.name", "agreement", "--data.path", "builtin:sms", "--model.path",
                                    "builtin:tiny", "--run.timeout", "4"])  # fmt: skip
    accelerator, ranks = start(config)
    last = ranks.world_size - 1
    assert ranks.gather(ranks.rank * 10) == [rank * 10 for rank in range(ranks.world_size)]
    assert ranks.share(f"from {ranks.rank}") == "from 0"
    assert ranks.agree(lambda: ranks.rank, only=lambda: ranks.rank == last) == (last if ranks.rank == last else None)
    users_error_is_the_same_everywhere(ranks, last)
    defect_is_named_by_its_rank(ranks, last)
    preparation_may_be_slow(ranks)
    accelerator.end_training()


def users_error_is_the_same_everywhere(ranks: Ranks, last: int) -> None:
    def work() -> None:
        if ranks.rank == last:
            raise DataError("rows.csv:7: broken")

    try:
        ranks.agree(work)
    except DataError as error:
        assert str(error) == "rows.csv:7: broken" and error.exit_code == 3
    else:
        raise AssertionError("no rank may go on")


def defect_is_named_by_its_rank(ranks: Ranks, last: int) -> None:
    def work() -> None:
        if ranks.rank == last:
            raise KeyError("defect")

    try:
        ranks.agree(work)
    except KeyError:
        assert ranks.rank == last
    except PeerError as error:
        assert ranks.rank != last and f"rank {last} failed" in str(error)
    else:
        raise AssertionError("no rank may go on")


def preparation_may_be_slow(ranks: Ranks) -> None:
    made: list[int] = []

    def tokenise() -> int:
        if ranks.local_rank == 0:
            time.sleep(7)  # longer than run.timeout
        made.append(ranks.rank)
        return 5

    assert ranks.on_each_node(tokenise) == 5
    assert made == [ranks.rank]


if __name__ == "__main__":
    main()

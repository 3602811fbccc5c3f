"""Going on from a checkpoint, on the same or another number of ranks."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from isostep.checkpoint.contents import rank_sums, restore_rank, restore_shared
from isostep.checkpoint.saving import supersede, supersede_best
from isostep.errors import ConfigError
from isostep.track.folder import refuse_shorter

if TYPE_CHECKING:
    from isostep.train.loop import Loop
    from isostep.train.ranks import Ranks

LOGGER = logging.getLogger("isostep")


def resume(loop: Loop, saved: Path, past: dict[str, Any], ranks: Ranks) -> None:
    """Put everything back as it was when the checkpoint `saved` was written; `past` is its state.json.

    Raises ConfigError for a checkpoint of another precision, of other data or of a longer run, CheckpointError for one
    that does not fit the model.
    """
    check_resumable(past, loop.facts, loop.total_steps, loop.config.run.name)
    before, same = past["facts"]["world_size"], past["facts"]["world_size"] == ranks.world_size
    restore_shared(saved, loop.output.checkpointer.trained, past)
    sums = [rank_sums(saved, rank)["loss_sum"] for rank in range(before)]
    # what was not reduced yet: each rank's own, or all of it on rank 0 of another number of ranks
    loop.restore(past, sums[ranks.rank] if same else sum(sums) * ranks.is_main)
    if ranks.rank < before:
        restore_rank(saved, ranks.rank, loop.accelerator.device)
    if ranks.is_main:
        _leave_the_old_future(loop, saved, past)
    LOGGER.info("resumed from %s, restart %d", saved, loop.state.restarts)
    if not same:
        LOGGER.info(
            "it was saved by %d ranks: order and curve stay; dropout of further ranks is drawn from seed and rank",
            before,
        )
    if loop.state.stopped_early:
        LOGGER.warning(
            "eval.patience ended the run at step %d, and it stays ended: no step is trained, whatever train.epochs, "
            "train.max_steps and eval.patience say now; another --run.name trains anew, run.resume with the path of "
            "an earlier checkpoint from there", loop.state.step,
        )  # fmt: skip
    elif loop.total_steps != past["total_steps"]:
        LOGGER.info(
            "made longer: to step %d, was %d; the next step's learning rate is %.4g, was %.4g",
            *(loop.total_steps, past["total_steps"], loop.step.scheduler.get_last_lr()[0], past["next_rate"]),
        )


def _leave_the_old_future(loop: Loop, saved: Path, past: dict[str, Any]) -> None:
    """Set aside what was saved after this checkpoint, if what follows now may be something else.

    After a kill it is the same: best/ of a later step stays, and is written anew when that step comes again.
    """
    root, state = loop.output.checkpointer.root, loop.state
    supersede(root, state.step)
    if saved == Path(loop.config.run.resume) or loop.total_steps != past["total_steps"]:
        aside = supersede_best(root.parent / "best", state.best_step)
        if aside is not None:
            best = "none" if state.best_value is None else f"{state.best_value:.4g} at step {state.best_step}"
            LOGGER.warning("best/ was of a later step and is now %s; the best up to here is %s, and the next better "
                           "evaluation writes a new one", aside.name, best)  # fmt: skip


def check_resumable(past: dict[str, Any], facts: dict[str, Any], total_steps: int, name: str) -> None:
    """Raise ConfigError where a checkpoint was made with another precision or other data, or for a longer run."""
    was, now = past["facts"], facts
    if was["precision"] != now["precision"]:
        raise ConfigError(f"run {name} was begun in precision {was['precision']}, and this start is in "
                          f"{now['precision']} (train.precision)\nchoose another --run.name")  # fmt: skip
    if was["data"] != now["data"]:
        raise ConfigError(f"run {name} was begun with other data: the rows of data.train or data.validation have "
                          f"changed since (hash {was['data']}, now {now['data']})\n"
                          "choose another --run.name")  # fmt: skip
    refuse_shorter(name, past["total_steps"], total_steps)


def seed_rank(seed: int, rank: int) -> None:
    """Seed python, numpy and torch from (seed, rank): dropout differs between ranks and repeats between runs."""
    words = np.random.SeedSequence([seed, rank]).generate_state(3, np.uint32)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))

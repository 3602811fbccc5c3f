"""Going on from a checkpoint, on the same or another number of ranks."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from isostep.checkpoint.contents import rank_sums, restore_rank, restore_shared
from isostep.errors import ConfigError

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
    LOGGER.info("resumed from %s, restart %d", saved, loop.state.restarts)
    if not same:
        LOGGER.info(
            "it was saved by %d ranks: order and curve stay; dropout of further ranks is drawn from seed and rank",
            before,
        )
    if loop.total_steps != past["total_steps"]:
        LOGGER.info(
            "made longer: to step %d, was %d; the next step's learning rate is %.4g, was %.4g",
            *(loop.total_steps, past["total_steps"], loop.step.scheduler.get_last_lr()[0], past["next_rate"]),
        )


def check_resumable(past: dict[str, Any], facts: dict[str, Any], total_steps: int, name: str) -> None:
    """Raise ConfigError where a checkpoint was made with another precision or other data, or for a longer run."""
    for key, what in (("precision", "precision"), ("data", "data (its rows, their lengths or labels)")):
        if past["facts"][key] != facts[key]:
            raise ConfigError(f"run {name} has another {what}: {past['facts'][key]}, now {facts[key]}\n"
                              "choose another --run.name")  # fmt: skip
    if total_steps < past["total_steps"]:
        raise ConfigError(f"run {name} was to have {past['total_steps']} steps; train.epochs or train.max_steps now "
                          f"say {total_steps}: a run can be made longer only\nchoose another --run.name")  # fmt: skip


def seed_rank(seed: int, rank: int) -> None:
    """Seed python, numpy and torch from (seed, rank): dropout differs between ranks and repeats between runs."""
    words = np.random.SeedSequence([seed, rank]).generate_state(3, np.uint32)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))

"""The schedule against transformers', and which parameters decay."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from isostep.optim import learning_rate_factor, parameter_groups, warmup_steps


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_rates_are_those_of_transformers(schedule, warmup):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    theirs = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=20)
    for step in range(21):
        ours = learning_rate_factor(step, schedule, warmup, 20)
        assert ours == pytest.approx(theirs.get_last_lr()[0], rel=1e-12, abs=1e-15)
        optimizer.step()
        theirs.step()


def test_warmup_is_a_share_below_one_and_a_count_from_there():
    assert [warmup_steps(w, 100) for w in (0, 0.06, 0.999, 1, 30)] == [0, 6, 100, 1, 30]
    assert warmup_steps(0.06, 14) == 1


def test_biases_and_norms_do_not_decay_and_every_trained_parameter_is_in_one_group():
    model = nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[3].weight.requires_grad_(False)
    decay, plain = parameter_groups(model, 0.1)
    assert (decay["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert [id(p) for p in decay["params"]] == [id(model[0].weight), id(model[2].weight)]
    assert {id(p) for p in plain["params"]} == {
        id(model[1].weight),
        id(model[1].bias),
        id(model[2].bias),
        id(model[3].bias),
    }

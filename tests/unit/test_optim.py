"""The schedule against transformers', and which parameters decay."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from isostep.config import Optim
from isostep.errors import ConfigError
from isostep.optim import learning_rate_factor, own_optimizer, own_schedule, parameter_groups, warmup_steps


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


def layers() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[2].weight.requires_grad_(False)
    return model


def names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[known[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def test_an_optimizer_of_ones_own_gets_the_groups_with_their_names_decay_and_rate():
    model, seen = layers(), []

    def factory(groups):
        seen.extend(groups)
        return torch.optim.SGD(groups, lr=9.0)

    optimizer = own_optimizer(model, Optim(lr=0.25, weight_decay=0.5), factory)
    assert type(optimizer) is torch.optim.SGD
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.25, 0.5), (0.25, 0.0)]
    assert names(model, optimizer) == [["0.weight"], ["0.bias", "1.weight", "1.bias", "2.bias"]]
    assert [group["names"] for group in seen] == names(model, optimizer)


def test_a_group_without_parameters_is_not_handed_out():
    model = nn.Linear(3, 3, bias=False)
    optimizer = own_optimizer(model, Optim(), lambda groups: torch.optim.Adagrad(groups))
    assert names(model, optimizer) == [["weight"]]


def test_one_flat_list_of_parameters_is_an_optimizer_too():
    model = layers()
    optimizer = own_optimizer(
        model, Optim(), lambda groups: torch.optim.SGD([p for group in groups for p in group["params"]], lr=0.1)
    )
    assert len(names(model, optimizer)) == 1 and len(names(model, optimizer)[0]) == 5


def first(groups):
    return torch.optim.SGD(groups[:1], lr=0.1)


def with_frozen(model):
    return lambda groups: torch.optim.SGD([*groups, {"params": [model[2].weight]}], lr=0.1)


def with_strange(groups):
    return torch.optim.SGD([*groups, {"params": [nn.Parameter(torch.zeros(2))]}], lr=0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda model: first, r"leaves out 4 trained parameter\(s\): 0\.bias, 1\.weight, 1\.bias, \.\.\.; put them"),
        (lambda model: lambda groups: torch.optim.SGD([*groups[:1], {"params": groups[1]["params"][:3]}], lr=0.1),
         r"leaves out 1 trained parameter\(s\): 2\.bias; put them"),
        (with_frozen, "takes in parameters that are frozen or not the model's"),
        (lambda model: with_strange, "takes in parameters that are frozen or not the model's"),
        (lambda model: lambda groups: None, "returned NoneType, not a torch Optimizer"),
        (lambda model: lambda groups: torch.optim.SGD, "returned type, not a torch Optimizer"),
    ],
)  # fmt: skip
def test_an_optimizer_that_does_not_hold_just_what_is_trained_is_refused(make, said):
    model = layers()
    with pytest.raises(ConfigError, match=f"^fit: the optimizer factory {said}"):
        own_optimizer(model, Optim(), make(model))


def test_a_schedule_of_ones_own_is_one_that_moves_with_the_steps():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedules = torch.optim.lr_scheduler
    made = own_schedule(optimizer, 8, lambda given, steps: schedules.LinearLR(given, 1.0, 0.5, total_iters=steps))
    assert made.optimizer is optimizer and made.total_iters == 8
    with pytest.raises(ConfigError, match=r"^fit: ReduceLROnPlateau follows a metric.*eval\.patience"):
        own_schedule(optimizer, 8, lambda given, steps: schedules.ReduceLROnPlateau(given))
    with pytest.raises(ConfigError, match=r"^fit: the scheduler factory returned float, not a torch LRScheduler"):
        own_schedule(optimizer, 8, lambda given, steps: 0.5)

"""Optimizer and schedule: AdamW with decay on matrices only, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from isostep.errors import ConfigError

if TYPE_CHECKING:
    from isostep.config import Optim

FUSED_DEVICES = ("cpu", "cuda")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: with decay, and without it for biases and norms (anything below 2-D).

    The rule by dimension covers LayerNorm and RMSNorm of every architecture without a list of class names.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter, 2019), fused where the device has it: one kernel.

    A fused step also takes `found_inf`, so that a non-finite one is skipped without the host waiting for the device.
    """
    device = next(model.parameters()).device.type
    return torch.optim.AdamW(
        parameter_groups(model, optim.weight_decay),
        lr=optim.lr,
        betas=(optim.betas[0], optim.betas[1]),
        eps=optim.eps,
        fused=device in FUSED_DEVICES,
    )


def own_optimizer(
    model: nn.Module, optim: Optim, factory: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
) -> torch.optim.Optimizer:
    """What `factory` makes of the parameter groups, each with params, their names, weight_decay, and optim.lr as lr.

    Raises ConfigError where it returns no optimizer, leaves trained parameters out, or takes others in.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = [
        {**group, "names": [names[id(parameter)] for parameter in group["params"]], "lr": optim.lr}
        for group in parameter_groups(model, optim.weight_decay)
    ]
    optimizer = factory([group for group in groups if group["params"]])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"fit: the optimizer factory returned {type(optimizer).__name__}, not a torch Optimizer")
    taken = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    left_out = [name for key, name in names.items() if key not in set(taken)]
    if left_out:
        raise ConfigError(
            f"fit: the optimizer factory leaves out {len(left_out)} trained parameter(s): {', '.join(left_out[:3])}"
            f"{', ...' if len(left_out) > 3 else ''}; put them into a group, or freeze them in the model"
        )
    if len(taken) > len(names):
        raise ConfigError("fit: the optimizer factory takes in parameters that are frozen or not the model's")
    return optimizer


def own_schedule(
    optimizer: torch.optim.Optimizer,
    total_steps: int,
    factory: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler],
) -> torch.optim.lr_scheduler.LRScheduler:
    """What `factory` makes of the optimizer and the number of steps of the run.

    Raises ConfigError where it is no schedule, or one that follows a metric: it is moved after each step.
    """
    scheduler = factory(optimizer, total_steps)
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            "fit: ReduceLROnPlateau follows a metric, and a schedule moves once a step; eval.patience ends a run that "
            "gets no better"
        )
    if not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
        raise ConfigError(f"fit: the scheduler factory returned {type(scheduler).__name__}, not a torch LRScheduler")
    return scheduler


def warmup_steps(warmup: float, total_steps: int) -> int:
    """Steps of warm-up: a share of `total_steps` below 1 (rounded up), else a number of steps."""
    return math.ceil(warmup * total_steps) if warmup < 1 else int(warmup)


def learning_rate_factor(step: int, schedule: str, warmup: int, total_steps: int) -> float:
    """What optim.lr is multiplied by in the optimizer step with index `step`, from 0.

    Linear warm-up from 0, then linear decay to 0, half a cosine to 0, or constant: the three schedules of
    transformers.get_scheduler, as a pure function.
    """
    if step < warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    progress = (step - warmup) / max(1, total_steps - warmup)
    if schedule == "cosine":
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))
    return max(0.0, 1.0 - progress)


def make_scheduler(
    optimizer: torch.optim.Optimizer, optim: Optim, total_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """A LambdaLR that is stepped once per optimizer step."""
    warmup = warmup_steps(optim.warmup, total_steps)
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, optim.schedule, warmup, total_steps)
    )

"""Optimizer and schedule: AdamW with decay on matrices only, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from isostep.config import Optim

FUSED_DEVICES = ("cpu", "cuda")


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
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

"""One optimizer step over a window: the gradient of the window's mean loss, however the window is cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate.scheduler import AcceleratedScheduler
from torch import Tensor, nn

from isostep.data.plan import Window
from isostep.optim import make_scheduler
from isostep.tasks.base import at_least_fp32

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    from isostep.config import Optim
    from isostep.tasks import Task


class StepResult(NamedTuple):
    """What a step leaves on the device; nothing of it was waited for."""

    loss_sum: Tensor
    """() float64: this rank's summed item losses; over all ranks and divided by the weight it is the window's loss."""
    grad_norm: Tensor
    """() the gradient's 2-norm before clipping, the same on all ranks."""


def prepare_scheduler(
    optimizer: AcceleratedOptimizer,
    optim: Optim,
    total_steps: int,
    factory: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler] | None = None,
) -> AcceleratedScheduler:
    """The schedule, moved once per optimizer step on any number of ranks, and not by a step that GradScaler skipped.

    Built by hand: Accelerator.prepare would move it world_size times a step (accelerate #2926), and `split_batches`
    is what tells AcceleratedScheduler not to. The loaders never get that option. `factory` makes another schedule than
    optim.schedule's from the optimizer and the number of steps.
    """
    if factory is not None:
        scheduler = factory(optimizer.optimizer, total_steps)
    else:
        scheduler = make_scheduler(optimizer.optimizer, optim, total_steps)
    return AcceleratedScheduler(scheduler, optimizer, split_batches=True)


class Step:
    """Forward, backward, clip and update for one window.

    The loss of a part is the *sum* of its item losses x world_size / weight(window). DDP averages gradients over the
    ranks, so what arrives is the gradient of sum(all item losses) / weight(window): exactly that of the window's mean
    loss, for any number of ranks and parts. The weight follows from the plan, so no collective is needed for it.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        model: nn.Module,
        optimizer: AcceleratedOptimizer,
        scheduler: AcceleratedScheduler,
        task: Task,
        max_grad_norm: float | None,
    ) -> None:
        self.accelerator = accelerator
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.task = task
        self.max_grad_norm = float("inf") if max_grad_norm is None else max_grad_norm
        self.trained = [p for p in model.parameters() if p.requires_grad]
        # a fused optimizer skips a step on the device where found_inf is set; under fp16 GradScaler does all that
        self.scaled = accelerator.scaler is not None
        self.fused = all(group.get("fused") for group in optimizer.param_groups)

    def warm_up(self, batch: dict[str, Any]) -> None:
        """One synchronous backward of a zero loss, its gradients dropped and the random state put back.

        DDP rebuilds its buckets after the first backward. Made to happen here, it does not change the order in which
        the gradients of a resumed run's first step are summed.
        """
        devices = [self.accelerator.device] if self.accelerator.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            self.accelerator.backward(self._loss_sum(batch) * 0.0)
        self.model.zero_grad(set_to_none=True)

    def _loss_sum(self, batch: dict[str, Any]) -> Tensor:
        outcome = self.task.forward(self.model, batch)
        weights = batch["weights"] if outcome.rows is None else batch["weights"][outcome.rows]
        return (at_least_fp32(outcome.losses) * weights).sum()

    def __call__(self, window: Window, batches: Iterator[dict[str, Any]]) -> StepResult:
        """Take one step over `window`; `batches` yields this rank's parts of it."""
        self.model.train()
        scale = self.accelerator.num_processes / window.weight
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        last = len(window.passes) - 1
        for j in range(last + 1):
            batch = next(batches)
            assert batch["window"] == window.number, f"part of window {batch['window']} in window {window.number}"
            # the forward too: DDP decides there whether the backward will synchronise
            with contextlib.nullcontext() if j == last else self.accelerator.no_sync(self.model):
                loss_sum = self._loss_sum(batch)
                self.accelerator.backward(loss_sum * scale)
            total += loss_sum.detach()
        norm = self.accelerator.clip_grad_norm_(self.trained, self.max_grad_norm)
        assert isinstance(norm, Tensor)
        self._update(norm.detach())
        return StepResult(total, norm.detach())

    def _update(self, norm: Tensor) -> None:
        """Apply the gradient unless it is not finite: that reaches every rank in the reduction, so all skip alike."""
        if self.fused and not self.scaled:
            self.optimizer.optimizer.found_inf = (~torch.isfinite(norm)).to(torch.float32)
        if self.fused or self.scaled or torch.isfinite(norm).item():  # an optimizer that can't skip has to be asked
            self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)

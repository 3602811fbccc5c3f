"""The loop: windows, rows of the record, evaluations, the best model and early stopping, by global step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from isostep.data.loader import TrainSampler
from isostep.data.plan import Plan, Window
from isostep.errors import DivergedError
from isostep.state import TrainState
from isostep.track.console import Progress
from isostep.track.record import NullRecord
from isostep.track.wandb import NullTracker
from isostep.train.evaluate import Evaluator, evaluate_all
from isostep.train.step import Step

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from isostep.config import Config

LOGGER = logging.getLogger("isostep")


@dataclass
class Interval:
    """What has happened since the last row; sums stay on the device until a row is made."""

    loss_sum: Tensor
    """() float64, this rank's."""
    weight: int = 0
    steps: int = 0
    examples: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    seconds: float = 0.0
    data_seconds: float = 0.0

    def add(self, window: Window, loss_sum: Tensor, seconds: float, data_seconds: float) -> None:
        self.loss_sum = self.loss_sum + loss_sum
        self.weight += window.weight
        self.steps += 1
        self.examples += len(window.indices)
        self.tokens += window.tokens
        self.padded_tokens += window.padded_tokens
        self.seconds += seconds
        self.data_seconds += data_seconds


class Timed(Iterator[Any]):
    """An iterator that adds up the seconds its consumer waits for it."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.seconds = 0.0

    def __next__(self) -> Any:
        started = time.perf_counter()
        item = next(self.source)
        self.seconds += time.perf_counter() - started
        return item


class Loop:
    """Trains from `state` to the last step.

    Everything that is decided here (evaluate, best, stop) follows from `state`, the plan and shared metrics, all of
    which are the same on every rank; so no rank is ever asked what it wants.
    """

    def __init__(
        self,
        config: Config,
        accelerator: Accelerator,
        model: nn.Module,
        step: Step,
        plan: Plan,
        loader: DataLoader[Any],
        sampler: TrainSampler,
        evaluators: dict[str, Evaluator],
        state: TrainState,
        total_steps: int,
        record: NullRecord,
        tracker: NullTracker,
        progress: Progress,
        save_best: Callable[[dict[str, float]], None],
    ) -> None:
        self.config = config
        self.accelerator = accelerator
        self.model = model
        self.step = step
        self.plan = plan
        self.loader = loader
        self.sampler = sampler
        self.evaluators = evaluators
        self.state = state
        self.total_steps = total_steps
        self.record = record
        self.tracker = tracker
        self.progress = progress
        self.save_best = save_best
        self.interval = self._new_interval()
        self.evaluation: dict[str, float] = {}
        self._last_norm: Tensor | None = None
        self._last_rate = 0.0
        self._unread: tuple[int, Tensor] | None = None

    def run(self) -> str:
        """Train to the end; the reason why it ended."""
        if self.config.eval.at_start and self.state.step == 0:
            self._write_row(evaluate_all(self.evaluators, self.model))
        reason = "all steps done"
        while self.state.step < self.total_steps:
            if self._epoch():
                reason = f"no better {self.config.eval.metric} in {self.config.eval.patience} evaluations"
                break
        self._read_finite()
        return reason

    def _epoch(self) -> bool:
        """The rest of the current epoch; True if patience ended the run."""
        state = self.state
        self.sampler.start_at(state.epoch, state.window)
        batches = Timed(iter(self.loader))
        for window in self.plan.windows(state.epoch, state.window):
            self._train(window, batches)
            last_of_epoch = state.window == 0
            finished = state.step == self.total_steps
            if self._due(self.config.eval.every, last_of_epoch) or finished:
                if self._evaluate():
                    return True
            elif state.step % self.config.track.log_every == 0:
                self._write_row({})
            if finished:
                return False
        return False

    def _due(self, every: int | str, last_of_epoch: bool) -> bool:
        return last_of_epoch if every == "epoch" else self.state.step % int(every) == 0

    def _train(self, window: Window, batches: Timed) -> None:
        began, waited = time.perf_counter(), batches.seconds
        rate = self.step.scheduler.get_last_lr()[0]
        result = self.step(window, batches)
        # the flag of the step before: by now it has long been computed, and the device works on this step meanwhile
        self._read_finite()
        self._unread = (self.state.step + 1, result.grad_norm)
        self._last_norm, self._last_rate = result.grad_norm, rate
        seconds = time.perf_counter() - began
        self.interval.add(window, result.loss_sum, seconds, batches.seconds - waited)
        self.state.train_seconds += seconds
        self.state.advance(len(window.indices), window.tokens, self.plan.windows_per_epoch)
        self.progress.step()

    def _read_finite(self) -> None:
        """Count the last unread step if it was skipped; every rank reads the same norm. Raises DivergedError."""
        if self._unread is None:
            return
        step, norm = self._unread
        self._unread = None
        if math.isfinite(norm.item()):  # waits for the step before this one only
            self.state.nonfinite_in_a_row = 0
            return
        self.state.nonfinite += 1
        self.state.nonfinite_in_a_row += 1
        LOGGER.warning("step %d: the gradient is not finite; its update was skipped", step)
        # under fp16 a skipped step is how the loss scale is found, and only many in a row are a sign
        stop = self.config.train.nonfinite == "stop" and not self.step.scaled
        limit = 1 if stop else self.config.train.nonfinite_limit
        if self.state.nonfinite_in_a_row >= limit:
            raise DivergedError(
                f"the gradient was not finite in {self.state.nonfinite_in_a_row} step(s) in a row, up to step {step}\n"
                "lower optim.lr, or train in fp32 (train.precision: no)"
            )

    def _evaluate(self) -> bool:
        """Evaluate, note the best, write a row; True if patience is used up."""
        self.evaluation = evaluate_all(self.evaluators, self.model)
        value = self.evaluation[self.config.eval.metric]
        better = self._is_better(value)
        if better:
            self.state.best_value, self.state.best_step = value, self.state.step
        self.state.evaluations_since_best = 0 if better else self.state.evaluations_since_best + 1
        self._write_row(self.evaluation)
        if better:
            self.save_best(self.evaluation)
        self.record.write_history()
        self.record.status("running", self.state)
        patience = self.config.eval.patience
        return patience is not None and self.state.evaluations_since_best >= patience

    def _is_better(self, value: float) -> bool:
        """Better than the best by more than eval.min_delta; a value that is not finite never is."""
        if not math.isfinite(value):
            return False
        if self.state.best_value is None:
            return True
        gain = self.state.best_value - value if self.config.eval.mode == "min" else value - self.state.best_value
        return gain > self.config.eval.min_delta

    def _write_row(self, values: dict[str, float]) -> None:
        """One row: position, training since the last row, then `values`. The only reduction of losses."""
        state = self.state
        row: dict[str, Any] = {
            "step": state.step,
            "epoch": state.epoch + state.window / self.plan.windows_per_epoch,
            "examples_seen": state.examples_seen,
            "tokens_seen": state.tokens_seen,
            "time": time.time(),
        }
        if self.interval.steps:
            row.update(self._training_values())
        row.update(values)
        self.interval = self._new_interval()
        self.record.row(row)
        self.tracker.row(row)
        self.progress.row(row)

    def _training_values(self) -> dict[str, float]:
        past = self.interval
        loss_sum = self.accelerator.reduce(past.loss_sum, "sum")
        assert isinstance(loss_sum, Tensor) and self._last_norm is not None
        device = self.accelerator.device
        memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
        values = {
            "train/loss": loss_sum.item() / past.weight,
            "train/lr": self._last_rate,
            "train/grad_norm": self._last_norm.item(),
            "perf/examples_per_second": past.examples / past.seconds,
            "perf/tokens_per_second": past.tokens / past.seconds,
            "perf/padding": past.padded_tokens / past.tokens,
            "perf/step_seconds": past.seconds / past.steps,
            "perf/data_seconds": past.data_seconds / past.steps,
        }
        if self.state.nonfinite:
            values["train/nonfinite"] = self.state.nonfinite
        if memory is not None:
            values["perf/memory_gib"] = memory
        return values

    def _new_interval(self) -> Interval:
        return Interval(torch.zeros((), dtype=torch.float64, device=self.accelerator.device))

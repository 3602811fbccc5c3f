"""The loop: windows, rows of the record, evaluations, the best model and early stopping, by global step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor, nn

from isostep.data.loader import TrainSampler
from isostep.data.plan import Plan, Window
from isostep.errors import ConfigError, DivergedError, PreemptedError
from isostep.state import TrainState
from isostep.track.console import Progress
from isostep.track.record import NullRecord
from isostep.track.wandb import NullTracker
from isostep.train.evaluate import Evaluator, StoppedError, evaluate_all
from isostep.train.interval import Interval, Timed
from isostep.train.step import Step

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from isostep.checkpoint.saving import Checkpointer
    from isostep.config import Config
    from isostep.train.stop import Stop
    from isostep.train.watch import Watch

LOGGER = logging.getLogger("isostep")


@dataclass
class Output:
    """Where a loop's results go. On all ranks but the first the writers are null objects."""

    record: NullRecord
    tracker: NullTracker
    progress: Progress
    save_best: Callable[[dict[str, float]], None]
    checkpointer: Checkpointer


class Loop:
    """Trains from `state` to the last step.

    Everything that is decided here (evaluate, best, save, stop) follows from `state`, the plan, shared metrics and the
    agreed wish to stop, all of which are the same on every rank; so no rank is ever asked what it wants.
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
        stop: Stop,
        watch: Watch,
        facts: dict[str, Any],
        output: Output,
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
        self.stop = stop
        self.watch = watch
        self.facts = facts
        self.output = output
        self.interval = self._new_interval()
        self.evaluation: dict[str, float] = {}
        self._last_norm, self._last_rate = float("nan"), 0.0
        self._norm: Tensor | None = None
        self._unread: tuple[int, Tensor] | None = None

    def run(self) -> str:
        """Train to the end; the reason why it ended. Raises PreemptedError once it is stopped and saved."""
        ended = self.state.stopped_early
        if self.config.eval.at_start and self.state.step == 0:
            self._write_row(self._evaluate_all())
        if self.state.pending_evaluation:
            ended = self._end_step(evaluate=True)
        while not ended and self.state.step < self.total_steps:
            ended = self._epoch()
        self._read_finite()
        if self.state.stopped_early:
            return f"no better {self.config.eval.metric} in {self.config.eval.patience} evaluations"
        return "all steps done"

    def _epoch(self) -> bool:
        """The rest of the current epoch; True if the run has ended in it."""
        state = self.state
        self.sampler.start_at(state.epoch, state.window)
        batches = Timed(iter(self.loader))
        for window in self.plan.windows(state.epoch, state.window):
            self._train(window, batches)
            evaluate = self._due(self.config.eval.every) or state.step == self.total_steps
            if not evaluate and state.step % self.config.track.log_every == 0:
                self._write_row({})
            if self.stop.poll():
                self._leave(evaluate)
            if self._end_step(evaluate):
                return True
        return False

    def _end_step(self, evaluate: bool) -> bool:
        """Evaluation and checkpoint where they are due after a step; True if the run has ended with it."""
        ended = self.state.step == self.total_steps
        if evaluate:
            self._evaluate()
            ended = ended or self.state.stopped_early
        if self._due(self.config.checkpoint.every) or ended:
            self._save()
        return ended

    def _leave(self, evaluate: bool) -> NoReturn:
        """Save and stop; an evaluation that is due is made after the resume."""
        self.state.pending_evaluation = evaluate
        where = "before the first step"
        if self.state.step > 0:
            self._save()
            where = f"at step {self.state.step}, which is saved; the same command goes on from there"
        raise PreemptedError(f"stopped by {self.stop.reason or 'another rank'} {where}")

    def _save(self) -> None:
        self.watch.enter("save", self.state.step)
        self._read_finite()
        past = {key: value for key, value in vars(self.interval).items() if key != "loss_sum"}
        saved = {
            "train": self.state.state_dict(),
            "interval": past,
            "grad_norm": self._grad_norm(),
            "rate": self._last_rate,
            "evaluation": self.evaluation,
            "total_steps": self.total_steps,
            "next_rate": self.step.scheduler.get_last_lr()[0],
            "facts": self.facts,
        }
        self.output.checkpointer.save(self.state.step, saved, {"loss_sum": self.interval.loss_sum.item()})

    def restore(self, saved: dict[str, Any], loss_sum: float) -> None:
        """Go on from what `_save` has stored; `loss_sum` is this rank's."""
        self.state.load_state_dict({**saved["train"], "restarts": self.state.restarts})
        if saved["facts"]["metric"] != self.facts["metric"]:  # values of another metric can't be compared
            self.state.best_value, self.state.best_step, self.state.evaluations_since_best = None, None, 0
            self.state.best_values = {}
        self.interval = Interval(self._new_interval().loss_sum + loss_sum, **saved["interval"])
        self._last_norm, self._last_rate = saved["grad_norm"], saved["rate"]
        self.evaluation = saved["evaluation"]

    def _grad_norm(self) -> float:
        if self._norm is not None:
            self._last_norm, self._norm = self._norm.item(), None
        return self._last_norm

    def _due(self, every: int | str) -> bool:
        """After a step: the epoch's last one (the next window is a first one), or every n-th."""
        return self.state.window == 0 if every == "epoch" else self.state.step % int(every) == 0

    def _train(self, window: Window, batches: Timed) -> None:
        self.watch.enter("step", self.state.step + 1)
        began, waited = time.perf_counter(), batches.seconds
        rate = self.step.scheduler.get_last_lr()[0]
        result = self.step(window, batches)
        # the flag of the step before: by now it has long been computed, and the device works on this step meanwhile
        self._read_finite()
        self._unread = (self.state.step + 1, result.grad_norm)
        self._norm, self._last_rate = result.grad_norm, rate
        seconds = time.perf_counter() - began
        self.interval.add(window, result.loss_sum, seconds, batches.seconds - waited)
        self.state.train_seconds += seconds
        self.state.advance(len(window.indices), window.tokens, self.plan.windows_per_epoch)
        self.output.progress.step()

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

    def _evaluate_all(self) -> dict[str, float]:
        self.watch.enter("evaluation", self.state.step)
        try:
            return evaluate_all(self.evaluators, self.model)
        except StoppedError:
            self._leave(evaluate=True)

    def _evaluate(self) -> None:
        """Evaluate, note the best and whether patience is used up, write a row."""
        state = self.state
        state.pending_evaluation = False
        self.evaluation = self._evaluate_all()
        value = self._value()
        better = self._is_better(value)
        if better:
            state.best_value, state.best_step, state.best_values = value, state.step, self.evaluation
        state.evaluations_since_best = 0 if better else state.evaluations_since_best + 1
        patience = self.config.eval.patience
        state.stopped_early = patience is not None and state.evaluations_since_best >= patience
        self._write_row(self.evaluation)
        if better:
            self.output.save_best(self.evaluation)
        self.output.record.write_history()
        self.output.record.status("running", state)

    def _value(self) -> float:
        """What eval.metric names in the last evaluation. Raises ConfigError where nothing is called so."""
        metric = self.config.eval.metric
        if metric not in self.evaluation:
            raise ConfigError(f"eval.metric: {metric} is no value of this task; there are {', '.join(self.evaluation)}")
        return self.evaluation[metric]

    def _is_better(self, value: float) -> bool:
        """Better than the best by more than eval.min_delta; a value that is not finite never is."""
        if not math.isfinite(value):
            return False
        if self.state.best_value is None:
            return True
        gain = self.state.best_value - value if self.config.eval.mode == "min" else value - self.state.best_value
        return gain > self.config.eval.min_delta

    def write_test_row(self, values: dict[str, float]) -> None:
        """A row of its own at the end, since training has nothing to add to it."""
        row = self._position() | values
        self.output.record.row(row)
        self.output.tracker.row(row)

    def _write_row(self, values: dict[str, float]) -> None:
        """One row: position, training since the last row, then `values`. The only reduction of losses."""
        trained = self._training_values() if self.interval.steps else {}
        self.interval = self._new_interval()
        row = self._position() | trained | values
        self.output.record.row(row)
        self.output.tracker.row(row)
        self.output.progress.row(row)

    def _position(self) -> dict[str, Any]:
        state = self.state
        return {
            "step": state.step,
            "epoch": state.epoch + state.window / self.plan.windows_per_epoch,
            "examples_seen": state.examples_seen,
            "tokens_seen": state.tokens_seen,
            "time": time.time(),
        }

    def _training_values(self) -> dict[str, float]:
        past = self.interval
        loss_sum = self.accelerator.reduce(past.loss_sum, "sum")
        assert isinstance(loss_sum, Tensor)
        device = self.accelerator.device
        memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
        values = {
            "train/loss": loss_sum.item() / past.weight,
            "train/lr": self._last_rate,
            "train/grad_norm": self._grad_norm(),
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

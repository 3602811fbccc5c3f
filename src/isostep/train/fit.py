"""`fit`: wires a run from its configuration, trains it, and leaves its folder in order, whatever happens."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from isostep.checkpoint.contents import read_state
from isostep.checkpoint.saving import find
from isostep.durable import write_atomically
from isostep.errors import COMPLETED, ConfigError, DivergedError, FolderInUseError, IsostepError, PreemptedError
from isostep.state import TrainState
from isostep.tasks import Task, make_task
from isostep.tasks.base import answers_of_its_own
from isostep.track import console, environment
from isostep.track.folder import Claim, claim, holds_a_run, store_config
from isostep.track.lock import FolderLock
from isostep.track.record import NullRecord, Record, history, read_rows, write_status
from isostep.track.wandb import NullTracker, make_tracker
from isostep.train.evaluate import StoppedError
from isostep.train.parts import Metrics, ModelFactory, OptimizerFactory, Parts, SchedulerFactory
from isostep.train.prepare import prepare_data
from isostep.train.ranks import Ranks, lost_contact, start
from isostep.train.results import Results
from isostep.train.resume import resume
from isostep.train.stop import Stop
from isostep.train.watch import Watch
from isostep.train.wire import Wiring

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator

    from isostep.config import Config
    from isostep.train.loop import Loop

LOGGER = logging.getLogger("isostep")


def fit(
    config: Config,
    *,
    task: Task | None = None,
    model: nn.Module | ModelFactory | None = None,
    train: datasets.Dataset | None = None,
    validation: datasets.Dataset | Mapping[str, datasets.Dataset] | None = None,
    metrics: Metrics | None = None,
    optimizer: OptimizerFactory | None = None,
    scheduler: SchedulerFactory | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Train what `config` says on all ranks of this process' launcher; what train.py does.

    What is handed in takes the place of what the configuration names; every rank has to hand in the same.

    Args:
        config: the resolved configuration, from Config.load.
        task: another task than task.kind's, usually a subclass with its own `item_losses`.
        model: what the task calls, any nn.Module with its weights, or what makes one of the task, whose tokenizer and
            classes are known by then: the weights it draws follow from run.seed. model.path then names the tokenizer
            alone. Weights of rank 0 are used; frozen ones are in no checkpoint and must be the same at each start.
        train: rows to train on. With a column input_ids they are tokens already: labels, and what else the task's
            collation reads, stand beside it. Else they are texts, in the columns that data.text and data.label name.
        validation: rows to evaluate on, or several sets by name; without them a part of `train` is split off.
        metrics: (predictions, targets) -> {name: value}, beside the task's own; see Task.metrics.
        optimizer: the parameter groups, each a dict with params, their names, weight_decay and lr -> the optimizer.
        scheduler: the optimizer and the number of steps of the run -> a schedule that moves once a step.
        resume: go on from a checkpoint as run.resume says. Without it a folder that holds a run is refused, unless
            run.resume names a checkpoint.

    Returns:
        The history: steps, train_losses, val_losses, train_accs, val_accs (one entry an evaluation) and examples_seen.

    Raises:
        IsostepError: on all ranks alike; its kind says what was wrong, and its exit_code how train.py ends.

    The process group stays up: a program may call this again, or go on with collectives of its own.
    """
    fresh = not resume and config.run.resume == "auto"
    parts = Parts(task or make_task(config), model, train, validation, metrics, optimizer, scheduler)
    judged = dataclasses.replace(config.eval, metric=parts.metric(config.eval.metric))
    config = dataclasses.replace(config, eval=judged)
    accelerator, ranks = start(config)
    try:
        return _Run(config, accelerator, ranks, parts, fresh).run()
    finally:
        console.close_log()


class _Run:
    """One start of a run: claims the folder, prepares, trains, and records how it ended."""

    def __init__(self, config: Config, accelerator: Accelerator, ranks: Ranks, parts: Parts, fresh: bool) -> None:
        self.config = config
        self.accelerator = accelerator
        self.ranks = ranks
        self.parts = parts
        self.fresh = fresh
        self.folder = Path(config.run.root) / config.run.name
        self.checkpoints = self.folder / "checkpoints"
        self.state = TrainState()
        self.record, self.tracker = NullRecord(), NullTracker()
        self.watch: Watch | None = None
        self.lock = FolderLock(self.folder)
        self.stop = Stop(self.folder, ranks.rank, ranks.new_group())

    def run(self) -> dict[str, Any]:
        self.ranks.agree(self._take_folder, only=lambda: self.ranks.is_main)
        try:
            with self.stop.handling():
                return self._claimed()
        finally:
            self.lock.release()

    def _take_folder(self) -> None:
        try:
            self.lock.acquire()
        except FolderInUseError:
            raise
        except OSError as error:
            raise ConfigError(f"run.root: {self.folder} can't be written ({error.strerror})") from error

    def _claimed(self) -> dict[str, Any]:
        claimed = self.ranks.share(self.ranks.agree(self._claim, only=lambda: self.ranks.is_main))
        assert claimed is not None
        if claimed.finished:
            if self.ranks.is_main:
                print(f"{self.folder}: this run is already finished; nothing to do (another --run.name starts anew)")
            return self._history()
        self.state.restarts = claimed.restarts
        try:
            return self._train()
        except BaseException as error:
            self._record_failure(error)
            raise
        finally:
            if self.watch is not None:
                self.watch.close()

    def _claim(self) -> Claim:
        if self.fresh and holds_a_run(self.folder):
            raise ConfigError(f"fit: {self.folder} holds a run already; resume=True goes on with it, another run.name "
                              "starts anew")  # fmt: skip
        return claim(self.folder, self.config)

    def _record_failure(self, error: BaseException) -> None:
        lost, failed = lost_contact(error), []
        if self.watch is not None and not isinstance(error, IsostepError):
            if not lost:
                self.watch.enter("failure", self.state.step)
            failed = self.watch.failed()
            # a collective that timed out, say: the others' phases tell who did not come
            self.watch.dump_stacks()
            LOGGER.error("rank %d failed: %s\n%s", self.ranks.rank, error, self.watch.report())
        if self.ranks.is_main:
            code = error.exit_code if isinstance(error, IsostepError) else 1
            state = "failed"
            if isinstance(error, DivergedError | PreemptedError):
                state = "diverged" if isinstance(error, DivergedError) else "preempted"
            reason = str(error) or type(error).__name__
            if lost:  # slurm/train.sbatch starts such a run again, unless another rank has an error of its own
                cause = f"rank {failed[0]} failed, see its output" if failed else "lost contact with another rank"
                reason = f"{cause}: {reason}"
            write_status(self.folder, state, self.state, self.ranks.world_size, reason, code)
            self.tracker.finish(self.state, code)
            self.record.close()

    def _history(self) -> dict[str, Any]:
        path, where = self.folder / "metrics.jsonl", self.config.eval.metric.rpartition("/")[0]
        return self.ranks.share(history(read_rows(path), where) if self.ranks.is_main else {})

    def _train(self) -> dict[str, Any]:
        self.ranks.agree(lambda: console.open_log(self.folder, self.ranks.rank))
        self.watch = self.ranks.agree(lambda: Watch(self.folder, self.ranks.rank, self.ranks.world_size))
        assert self.watch is not None
        self.watch.enter("data", 0)
        found = self.ranks.agree(
            lambda: find(self.checkpoints, self.config.run.resume), only=lambda: self.ranks.is_main
        )
        saved = self.ranks.share(found)
        past = self.ranks.agree(lambda: read_state(saved) if saved is not None else None)
        if past is not None:
            self.state.load_state_dict({**past["train"], "restarts": self.state.restarts})
        elif self.state.restarts:
            LOGGER.warning("no checkpoint was saved before the run was interrupted: it starts again from step 1")
        self.ranks.agree(self._open_record)
        self.record.status("running", self.state)
        data = prepare_data(self.config, self.parts, self.ranks, self.stop)
        torch.manual_seed(self.config.run.seed)  # a new head is drawn alike on every rank
        model = self.ranks.agree(lambda: self.parts.make_model(self.config))
        assert model is not None
        results = Results(self.config, self.folder, self.ranks, self.parts.task, model, self.state)
        wiring = Wiring(self.config, self.parts, data, self.accelerator, self.ranks, self.stop, self.watch)
        loop = wiring.loop(model, self.state, self.record, self.tracker, results)
        if saved is not None and past is not None:
            self.ranks.agree(lambda: resume(loop, saved, past, self.ranks))
        self.ranks.agree(lambda: store_config(self.folder, self.config), only=lambda: self.ranks.is_main)
        restart = f", restart {self.state.restarts}" if self.state.restarts else ""
        for line in (*wiring.describe(loop), f"run folder {self.folder}{restart}"):
            LOGGER.info(line)
        self.record.begin(self.state.step if past is not None else None)
        reason = loop.run()
        self.watch.enter("export", self.state.step)
        results.save_final(loop.evaluation)
        if data.test is not None:
            self._test(loop, wiring, results, data.test)
        self._complete(loop, reason)
        return self._history()

    def _test(self, loop: Loop, wiring: Wiring, results: Results, rows: datasets.Dataset) -> None:
        """Evaluate the best on the test set: a row of its own, and status.json. A stop leaves all of it for later."""
        assert self.watch is not None
        self.watch.enter("test", self.state.step)
        try:
            self.state.test = results.test(wiring.evaluator(rows), self.state.best_values or loop.evaluation)
        except StoppedError:
            raise PreemptedError("stopped in the evaluation of the test set; the same command makes it") from None
        loop.write_test_row(self.state.test)

    def _complete(self, loop: Loop, reason: str) -> None:
        self.record.write_history()
        self.record.status("completed", self.state, reason, COMPLETED)
        self.tracker.finish(self.state, COMPLETED)
        loop.output.progress.close()
        self.record.close()
        best = self.state.best_value
        shown = "none" if best is None else f"{best:.4g} at step {self.state.best_step}"
        LOGGER.info("completed: %s, %d steps, best %s %s, %.1f s of training",
                    reason, self.state.step, self.config.eval.metric, shown, self.state.train_seconds)  # fmt: skip
        for name, value in self.state.test.items():
            LOGGER.info("%s %.4g", name, value)
        LOGGER.info("models in %s and %s; isostep predict %s --input FILE --output FILE labels a file with the best",
                    self.folder / "best", self.folder / "final", self.folder)  # fmt: skip

    def _open_record(self) -> None:
        if self.ranks.is_main:
            facts = environment.describe(self.ranks.world_size, self.accelerator.mixed_precision)
            task = {"name": type(self.parts.task).__qualname__, "replaces": answers_of_its_own(self.parts.task)}
            write_atomically(self.folder / "env.json", environment.to_json({**facts, "task": task}))
            self.record = Record(self.folder, self.ranks.world_size, self.config.eval.metric.rpartition("/")[0])
            self.tracker = make_tracker(self.config, self.folder, facts)

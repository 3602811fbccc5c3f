"""`fit`: wires a run from its configuration, trains it, and leaves its folder in order, whatever happens."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import send_to_device
from torch import nn

from isostep.checkpoint.card import model_card
from isostep.checkpoint.contents import Trained, read_state
from isostep.checkpoint.export import export
from isostep.checkpoint.saving import Checkpointer, find
from isostep.data.loader import Collate, TrainSampler, make_loader
from isostep.data.plan import Plan, fixed_subset
from isostep.data.tokens import TokenizedData, lengths
from isostep.durable import write_atomically
from isostep.errors import COMPLETED, ConfigError, DivergedError, FolderInUseError, IsostepError, PreemptedError
from isostep.models.load import freeze_unused, load_model
from isostep.optim import make_optimizer
from isostep.state import TrainState
from isostep.tasks import Classification, Task
from isostep.track import console, environment
from isostep.track.folder import claim, store_config
from isostep.track.lock import FolderLock
from isostep.track.record import NullRecord, Record, history, read_rows, write_status
from isostep.track.wandb import NullTracker, make_tracker
from isostep.train.evaluate import Evaluator
from isostep.train.loop import Loop, Output
from isostep.train.prepare import digest, prepare_data, token_budget
from isostep.train.ranks import Ranks, start
from isostep.train.resume import resume, seed_rank
from isostep.train.step import Step, prepare_scheduler
from isostep.train.stop import Stop
from isostep.train.watch import Watch

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase

    from isostep.config import Config

LOGGER = logging.getLogger("isostep")


def fit(config: Config, *, task: Task | None = None) -> dict[str, Any]:
    """Train what `config` says on all ranks of this process' launcher; what train.py does.

    Args:
        config: the resolved configuration, from Config.load.
        task: another task than task.kind's, usually a subclass with its own `item_losses`.

    Returns:
        The history: steps, train_losses, val_losses, train_accs, val_accs (one entry an evaluation) and examples_seen.

    Raises:
        IsostepError: on all ranks alike; its kind says what was wrong, and its exit_code how train.py ends.

    The process group stays up: a program may call this again, or go on with collectives of its own.
    """
    accelerator, ranks = start(config)
    try:
        return _Run(config, accelerator, ranks, task or Classification()).run()
    finally:
        console.close_log()


class _Run:
    """One start of a run: claims the folder, prepares, trains, and records how it ended."""

    def __init__(self, config: Config, accelerator: Accelerator, ranks: Ranks, task: Task) -> None:
        self.config = config
        self.accelerator = accelerator
        self.ranks = ranks
        self.task = task
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
        claimed = self.ranks.share(
            self.ranks.agree(lambda: claim(self.folder, self.config), only=lambda: self.ranks.is_main)
        )
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

    def _record_failure(self, error: BaseException) -> None:
        if self.watch is not None and not isinstance(error, IsostepError):
            # a collective that timed out, say: the others' phases tell who did not come
            self.watch.dump_stacks()
            LOGGER.error("rank %d failed: %s\n%s", self.ranks.rank, error, self.watch.report())
        if self.ranks.is_main:
            code = error.exit_code if isinstance(error, IsostepError) else 1
            state = "failed"
            if isinstance(error, DivergedError | PreemptedError):
                state = "diverged" if isinstance(error, DivergedError) else "preempted"
            reason = str(error) or type(error).__name__
            write_status(self.folder, state, self.state, self.ranks.world_size, reason, code)
            self.tracker.finish(self.state, code)
            self.record.close()

    def _history(self) -> dict[str, Any]:
        return self.ranks.share(history(read_rows(self.folder / "metrics.jsonl")) if self.ranks.is_main else {})

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
        record, tracker = self.record, self.tracker
        record.status("running", self.state)
        data, tokenizer = prepare_data(self.config, self.ranks, self.stop)
        self.task.bind(tokenizer, data.labels)
        torch.manual_seed(self.config.run.seed)  # a new head is drawn alike on every rank
        model = self.ranks.agree(lambda: load_model(self.config, data.labels, tokenizer))
        assert model is not None
        loop = self._wire(model, data, tokenizer, record, tracker)
        if saved is not None and past is not None:
            self.ranks.agree(lambda: resume(loop, saved, past, self.ranks))
        self.ranks.agree(lambda: store_config(self.folder, self.config), only=lambda: self.ranks.is_main)
        self._say_what_runs(loop, data)
        record.begin(self.state.step if past is not None else None)
        reason = loop.run()
        self.watch.enter("export", self.state.step)
        self._export("final", loop.model, tokenizer, data, loop.evaluation)
        record.write_history()
        record.status("completed", self.state, reason, COMPLETED)
        tracker.finish(self.state, COMPLETED)
        loop.output.progress.close()
        record.close()
        best = self.state.best_value
        shown = "none" if best is None else f"{best:.4g} at step {self.state.best_step}"
        LOGGER.info("completed: %s, %d steps, best %s %s, %.1f s of training",
                    reason, self.state.step, self.config.eval.metric, shown, self.state.train_seconds)  # fmt: skip
        LOGGER.info("models in %s and %s; isostep predict %s --input FILE --output FILE labels a file with the best",
                    self.folder / "best", self.folder / "final", self.folder)  # fmt: skip
        return self._history()

    def _open_record(self) -> None:
        if self.ranks.is_main:
            facts = environment.describe(self.ranks.world_size, self.accelerator.mixed_precision)
            write_atomically(self.folder / "env.json", environment.to_json(facts))
            self.record = Record(self.folder, self.ranks.world_size)
            self.tracker = make_tracker(self.config, self.folder, facts)

    def _wire(
        self,
        model: nn.Module,
        data: TokenizedData,
        tokenizer: PreTrainedTokenizerBase,
        record: NullRecord,
        tracker: NullTracker,
    ) -> Loop:
        config, accelerator = self.config, self.accelerator
        assert self.watch is not None
        budget = token_budget(config, accelerator.device)
        plan = Plan(lengths(data.train), config.batch.size, self.ranks.world_size, budget, config.run.seed)
        total_steps = config.train.max_steps or config.train.epochs * plan.windows_per_epoch
        model.to(accelerator.device)
        first = self._first_batch(plan, data)
        unused = freeze_unused(model, lambda: self._zero_backward(model, first))
        if unused:
            LOGGER.info("not trained, since the task never reaches them: %s", ", ".join(unused))
        bare, plain = model, make_optimizer(model, config.optim)
        model, optimizer = accelerator.prepare(bare, plain)
        scheduler = prepare_scheduler(optimizer, config.optim, total_steps)
        step = Step(accelerator, model, optimizer, scheduler, self.task, config.optim.max_grad_norm)
        step.warm_up(first)
        sampler = TrainSampler(plan)
        workers = config.data.workers if config.data.workers is not None else 0
        loader = accelerator.prepare_data_loader(make_loader(data.train, sampler, self.task.collate, workers))
        trained = Trained(bare, plain, scheduler.scheduler, accelerator.scaler)
        output = Output(
            record,
            tracker,
            self._progress(total_steps),
            lambda results: self._export("best", model, tokenizer, data, results),
            Checkpointer(self.checkpoints, self.ranks, trained, accelerator.device, config.checkpoint.keep),
        )
        facts = {
            "world_size": self.ranks.world_size,
            "precision": accelerator.mixed_precision,
            "data": digest(data),
            "metric": config.eval.metric,
        }
        seed_rank(config.run.seed, self.ranks.rank)
        return Loop(config, accelerator, model, step, plan, loader, sampler, self._evaluators(data, plan), self.state,
                    total_steps, self.stop, self.watch, facts, output)  # fmt: skip

    def _progress(self, total_steps: int) -> console.Progress:
        if not self.ranks.is_main:
            return console.NullProgress()
        return console.Progress(self.state.step, total_steps, self.config.eval.metric)

    def _evaluators(self, data: TokenizedData, plan: Plan) -> dict[str, Evaluator]:
        seed, settings = self.config.run.seed, self.config.eval

        def evaluator(rows: Any, most: int | None) -> Evaluator:
            chosen = fixed_subset(len(rows), most, seed)
            return Evaluator(self.accelerator, self.ranks, self.task, rows, lengths(rows), chosen, plan.budget,
                             self.stop)  # fmt: skip

        made = {"eval": evaluator(data.validation, settings.max_examples)}
        if settings.train_examples:
            made["eval/train"] = evaluator(data.train, settings.train_examples)
        return made

    def _first_batch(self, plan: Plan, data: TokenizedData) -> dict[str, Any]:
        part = plan.window(0, 0).passes[-1][0]  # the smallest part of the first window
        batch = Collate(self.task.collate)((part, data.train.__getitems__(list(part.indices))))
        moved: dict[str, Any] = send_to_device(batch, self.accelerator.device)
        return moved

    def _zero_backward(self, model: nn.Module, batch: dict[str, Any]) -> None:
        (self.task.forward(model, batch).losses.sum() * 0.0).backward()

    def _export(
        self,
        name: str,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        data: TokenizedData,
        results: dict[str, float],
    ) -> None:
        def write() -> None:
            card = model_card(self.config, data.labels.names, results, self.state.step, sys.argv)
            export(self.accelerator.unwrap_model(model), tokenizer, self.folder / name, card)

        self.ranks.agree(write, only=lambda: self.ranks.is_main)

    def _say_what_runs(self, loop: Loop, data: TokenizedData) -> None:
        config, plan, model = self.config, loop.plan, loop.model
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in model.parameters())
        window = plan.window(0, 0)
        if data.test is not None:
            LOGGER.warning("data.test is checked and tokenised, but nothing evaluates it yet")
        for line in (
            f"model {config.model.path}: {total:,} parameters, {trained:,} trained",
            f"data: {len(data.train):,} training and {len(data.validation):,} validation rows, "
            f"labels {', '.join(data.labels.names[:8])}{' ...' if len(data.labels.names) > 8 else ''}",
            f"plan: {loop.total_steps} steps of {config.batch.size} examples, {plan.windows_per_epoch} an epoch; "
            f"the first in {len(window.passes)} pass(es) of at most {plan.budget} tokens on each of "
            f"{self.ranks.world_size} rank(s), padding x{window.padded_tokens / window.tokens:.2f}",
            f"device {self.accelerator.device}, precision {self.accelerator.mixed_precision}, "
            f"attention {getattr(self.accelerator.unwrap_model(model).config, '_attn_implementation', 'eager')}",
            f"run folder {self.folder}" + (f", restart {self.state.restarts}" if self.state.restarts else ""),
        ):
            LOGGER.info(line)

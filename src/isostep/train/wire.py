"""From configuration, data and model to a loop: plan, optimizer, schedule, loaders, evaluators, checkpointer."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from accelerate.utils import send_to_device
from torch import nn

from isostep.checkpoint.contents import Trained
from isostep.checkpoint.saving import Checkpointer
from isostep.data.loader import Collate, TrainSampler, make_loader
from isostep.data.plan import Plan, fixed_subset
from isostep.data.tokens import TokenizedData, lengths
from isostep.models.load import freeze_unused
from isostep.optim import make_optimizer, own_optimizer, own_schedule
from isostep.track import console
from isostep.train.evaluate import Evaluator
from isostep.train.loop import Loop, Output
from isostep.train.prepare import digest, token_budget
from isostep.train.resume import seed_rank
from isostep.train.step import Step, prepare_scheduler

if TYPE_CHECKING:
    import datasets
    from accelerate import Accelerator

    from isostep.config import Config
    from isostep.state import TrainState
    from isostep.track.record import NullRecord
    from isostep.track.wandb import NullTracker
    from isostep.train.parts import Parts
    from isostep.train.ranks import Ranks
    from isostep.train.results import Results
    from isostep.train.stop import Stop
    from isostep.train.watch import Watch

LOGGER = logging.getLogger("isostep")


class Wiring:
    """Puts a run's parts together, on every rank alike."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        data: TokenizedData,
        accelerator: Accelerator,
        ranks: Ranks,
        stop: Stop,
        watch: Watch,
    ) -> None:
        self.config = config
        self.parts = parts
        self.task = parts.task
        self.data = data
        self.accelerator = accelerator
        self.ranks = ranks
        self.stop = stop
        self.watch = watch
        budget = token_budget(config, accelerator.device)
        self.plan = Plan(lengths(data.train), config.batch.size, ranks.world_size, budget, config.run.seed,
                         self.task.items(data.train))  # fmt: skip

    def loop(
        self, model: nn.Module, state: TrainState, record: NullRecord, tracker: NullTracker, results: Results
    ) -> Loop:
        """The loop that trains `model`, which is moved to the device and prepared here."""
        config, accelerator, plan = self.config, self.accelerator, self.plan
        total_steps = config.train.max_steps or config.train.epochs * plan.windows_per_epoch
        model.to(accelerator.device)
        first = self._first_batch()
        unused = freeze_unused(model, lambda: self._zero_backward(model, first))
        if unused:
            LOGGER.info("not trained, since the task never reaches them: %s", ", ".join(unused))
        factory = self.parts.optimizer
        plain = make_optimizer(model, config.optim) if factory is None else own_optimizer(model, config.optim, factory)
        prepared, optimizer = accelerator.prepare(model, plain)
        schedule = None if self.parts.scheduler is None else partial(own_schedule, factory=self.parts.scheduler)
        scheduler = prepare_scheduler(optimizer, config.optim, total_steps, schedule)
        step = Step(accelerator, prepared, optimizer, scheduler, self.task, config.optim.max_grad_norm)
        step.warm_up(first)
        sampler = TrainSampler(plan)
        workers = config.data.workers if config.data.workers is not None else 0
        loader = accelerator.prepare_data_loader(make_loader(self.data.train, sampler, self.task.collate, workers))
        trained = Trained(model, plain, scheduler.scheduler, accelerator.scaler)
        checkpointer = Checkpointer(
            results.folder / "checkpoints", self.ranks, trained, accelerator.device, config.checkpoint.keep
        )
        output = Output(record, tracker, self._progress(state, total_steps), results.save_best, checkpointer)
        labels = self.data.labels
        facts = {
            "world_size": self.ranks.world_size,
            "precision": accelerator.mixed_precision,
            "data": digest(self.data),
            "metric": config.eval.metric,
            "model": config.model.path if self.parts.model is None else "handed in",
            "labels": labels.to_json() if labels is not None else None,
        }
        seed_rank(config.run.seed, self.ranks.rank)
        return Loop(config, accelerator, prepared, step, plan, loader, sampler, self._evaluators(), state,
                    total_steps, self.stop, self.watch, facts, output)  # fmt: skip

    def evaluator(self, rows: datasets.Dataset, most: int | None = None) -> Evaluator:
        """Evaluates `rows`, or a fixed subset of `most` of them."""
        chosen = fixed_subset(len(rows), most, self.config.run.seed)
        return Evaluator(self.accelerator, self.ranks, self.task, rows, lengths(rows), chosen, self.plan.budget,
                         self.stop, self._metrics)  # fmt: skip

    def _metrics(self, predictions: Any, targets: Any) -> dict[str, float]:
        own = self.parts.metrics(predictions, targets) if self.parts.metrics is not None else {}
        return {**self.task.metrics(predictions, targets), **{name: float(value) for name, value in own.items()}}

    def _evaluators(self) -> dict[str, Evaluator]:
        settings = self.config.eval
        made = {prefix: self.evaluator(rows, settings.max_examples) for prefix, rows in self.data.validation.items()}
        if settings.train_examples:
            made["eval/train"] = self.evaluator(self.data.train, settings.train_examples)
        return made

    def _progress(self, state: TrainState, total_steps: int) -> console.Progress:
        if not self.ranks.is_main:
            return console.NullProgress()
        return console.Progress(state.step, total_steps, self.config.eval.metric)

    def _first_batch(self) -> dict[str, Any]:
        part = self.plan.window(0, 0).passes[-1][0]  # the smallest part of the first window
        batch = Collate(self.task.collate)((part, self.data.train.__getitems__(list(part.indices))))
        moved: dict[str, Any] = send_to_device(batch, self.accelerator.device)
        return moved

    def _zero_backward(self, model: nn.Module, batch: dict[str, Any]) -> None:
        (self.task.forward(model, batch).losses.sum() * 0.0).backward()

    def describe(self, loop: Loop) -> list[str]:
        """What runs, for the log: model, data, plan, device."""
        config, plan, model, names = self.config, self.plan, loop.model, self.data.labels
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        total = sum(p.numel() for p in model.parameters())
        window = plan.window(0, 0)
        shown = f", labels {', '.join(names.names[:8])}{' ...' if len(names) > 8 else ''}" if names is not None else ""
        sets = " + ".join(f"{len(rows):,}" for rows in self.data.validation.values())
        test = f", {len(self.data.test):,} test rows for the end" if self.data.test is not None else ""
        bare = self.accelerator.unwrap_model(model)
        shape = getattr(bare, "config", None)
        return [
            f"model {config.model.path if self.parts.model is None else type(bare).__name__}: "
            f"{total:,} parameters, {trained:,} trained",
            f"data: {len(self.data.train):,} training and {sets} validation rows{test}{shown}",
            f"plan: {loop.total_steps} steps of {config.batch.size} examples, {plan.windows_per_epoch} an epoch; "
            f"the first in {len(window.passes)} pass(es) of at most {plan.budget} tokens on each of "
            f"{self.ranks.world_size} rank(s), padding x{window.padded_tokens / window.tokens:.2f}",
            f"device {self.accelerator.device}, precision {self.accelerator.mixed_precision}, "
            f"attention {getattr(shape, '_attn_implementation', None) or 'its own'}",
        ]

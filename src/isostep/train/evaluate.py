"""Evaluation: every example exactly once, on any number of ranks, one exchange at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from isostep.data.loader import Rows, WindowSampler, make_loader
from isostep.data.plan import Indices, make_window

if TYPE_CHECKING:
    from accelerate import Accelerator

    from isostep.tasks import Task
    from isostep.train.ranks import Ranks
    from isostep.train.stop import Stop


class StoppedError(Exception):
    """The run shall stop; the evaluation is to be made after the resume."""


Arrays = tuple[npt.NDArray[Any], ...]


class Evaluator:
    """The loss and metrics of a task on fixed rows of a dataset.

    Args:
        rows: the dataset.
        lengths: (n,) tokens of each of its rows.
        indices: (m,) the rows that are evaluated.
        budget: the most tokens in one micro-batch.
        stop: asked at every pass.
        metrics: what is computed from predictions and targets, like Task.metrics.

    The rows are sorted by length and dealt over the ranks like one large window; each rank keeps (row, prediction,
    target, loss) of its own items and all is exchanged once. Since losses are summed per item, in the rows' order and
    in float64, the result does not depend on the micro-batches.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        ranks: Ranks,
        task: Task,
        rows: Rows,
        lengths: npt.NDArray[np.int32],
        indices: Indices,
        budget: int,
        stop: Stop,
        metrics: Callable[[Any, Any], dict[str, float]],
    ) -> None:
        self.ranks = ranks
        self.stop = stop
        self.task = task
        self.metrics = metrics
        self.indices = np.sort(indices)
        items = task.items(rows)  # type: ignore[arg-type]  # a real dataset where rows are several items
        self.items = items[self.indices] if items is not None else None
        window = make_window(0, indices, lengths[indices], len(indices), ranks.world_size, budget)
        self.loader = accelerator.prepare_data_loader(make_loader(rows, WindowSampler(window), task.collate, workers=0))

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """{"loss": ..., metric: ...}, the same on all ranks. Raises StoppedError on all where the run shall stop."""
        own = self._run(model)
        gathered = self.ranks.gather(own)
        # computed once and handed out, so that every rank decides on the same numbers
        result = self.ranks.agree(lambda: self._score(gathered), only=lambda: self.ranks.is_main)
        shared = self.ranks.share(result)
        assert shared is not None
        return shared

    @torch.no_grad()
    def _run(self, model: nn.Module) -> Arrays:
        """This rank's (row, prediction, target, loss), placeholders left out."""
        was_training = model.training
        model.eval()
        self.stop.new_pace()
        kept: list[tuple[torch.Tensor, ...]] = []
        for batch in self._batches():
            if self.stop.poll():  # all ranks have the same number of passes
                raise StoppedError
            outcome = self.task.forward(model, batch)
            rows = (
                outcome.rows
                if outcome.rows is not None
                else torch.arange(len(batch["indices"]), device=outcome.losses.device)
            )
            real = batch["weights"][rows] > 0
            columns = (batch["indices"][rows], outcome.predictions, outcome.targets, outcome.losses)
            kept.append(tuple(column[real] for column in columns))
        model.train(was_training)
        self.stop.new_pace()
        return tuple(torch.cat(column).cpu().numpy() for column in zip(*kept, strict=True))

    def _batches(self) -> Iterator[dict[str, Any]]:
        # to its end, never broken off: a prepared loader that is left early stays registered as the active one
        yield from self.loader

    def _score(self, gathered: list[Arrays]) -> dict[str, float]:
        index, predictions, targets, losses = (np.concatenate(column) for column in zip(*gathered, strict=True))
        order = np.argsort(index, kind="stable")
        wanted = self.indices if self.items is None else np.repeat(self.indices, self.items)
        if not np.array_equal(index[order], wanted):
            raise AssertionError(f"evaluation saw {len(index)} items, wanted each of {len(wanted)} exactly once")
        loss = float(losses[order].astype(np.float64).sum() / max(len(order), 1))
        predictions, targets = predictions[order], targets[order]
        if self.items is None:
            return {"loss": loss, **self.metrics(predictions, targets)}
        ends = np.cumsum(self.items)[:-1]
        return {"loss": loss, **self.metrics(np.split(predictions, ends), np.split(targets, ends))}


def evaluate_all(evaluators: dict[str, Evaluator], model: nn.Module) -> dict[str, float]:
    """{prefix + "/" + name: value} of each evaluator, in order."""
    return {f"{prefix}/{name}": value for prefix, run in evaluators.items() for name, value in run(model).items()}

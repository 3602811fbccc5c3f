"""What a run leaves to use: best/ and final/, and how the best does on the test set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from isostep.checkpoint.card import model_card
from isostep.checkpoint.export import export, restore

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.state import TrainState
    from isostep.tasks import Task
    from isostep.train.evaluate import Evaluator
    from isostep.train.ranks import Ranks


class Results:
    """Exports the bare `model` into the run folder; on all ranks together, written by the first."""

    def __init__(
        self, config: Config, folder: Path, ranks: Ranks, task: Task, model: nn.Module, state: TrainState
    ) -> None:
        self.config = config
        self.folder = folder
        self.ranks = ranks
        self.task = task
        self.model = model
        self.state = state

    def save_best(self, values: dict[str, float]) -> None:
        """Write best/; `values` are those of the evaluation that made it the best."""
        self._export("best", self.state.step, values)

    def save_final(self, values: dict[str, float]) -> None:
        """Write final/; `values` are those of the last evaluation."""
        self._export("final", self.state.step, values)

    def test(self, evaluator: Evaluator, values: dict[str, float]) -> dict[str, float]:
        """{"test/...": value} of the weights in best/, or of the final ones where none were ever best.

        The model holds those weights afterwards. Their card is written again with the test's values beside `values`,
        those of the evaluation that made it the best. Raises StoppedError where the run shall stop.
        """
        best = self.state.best_step
        if best is not None and best != self.state.step:
            self.ranks.agree(lambda: restore(self.model, self.folder / "best"))
        found = {f"test/{name}": value for name, value in evaluator(self.model).items()}
        name, step = ("best", best) if best is not None else ("final", self.state.step)
        self._export(name, step, {**values, **found})
        return found

    def _export(self, name: str, step: int, values: dict[str, float]) -> None:
        def write() -> None:
            card = model_card(self.config, self.task, values, step, sys.argv)
            export(self.model, self.task.tokenizer, self.folder / name, card)

        self.ranks.agree(write, only=lambda: self.ranks.is_main)

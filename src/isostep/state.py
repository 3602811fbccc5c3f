"""Where a run stands: everything the loop counts and remembers, in one small dataclass."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TrainState:
    """The position and the counters of a run; identical on all ranks after every step.

    The loop owns the position (the loader's workers run ahead of it). `state_dict` is JSON.
    """

    step: int = 0
    """Finished optimizer steps."""
    epoch: int = 0
    """The epoch that the next window belongs to, from 0."""
    window: int = 0
    """The next window's number within its epoch, from 0."""
    examples_seen: int = 0
    """Examples over all ranks, each counted once a pass over it."""
    tokens_seen: int = 0
    """Real tokens (no padding) over all ranks."""
    best_value: float | None = None
    """The best value of eval.metric so far; None before the first finite one."""
    best_step: int | None = None
    """The step at which it was measured."""
    best_values: dict[str, float] = field(default_factory=dict)
    """The whole evaluation that was the best."""
    evaluations_since_best: int = 0
    """Evaluations since then, for eval.patience."""
    nonfinite: int = 0
    """Windows skipped because their loss or gradient was not finite."""
    nonfinite_in_a_row: int = 0
    """The same, since the last finite one."""
    train_seconds: float = 0.0
    """Seconds spent in steps: no start-up, evaluation or saving."""
    pending_evaluation: bool = False
    """The run was stopped before or inside an evaluation that was due at this step."""
    stopped_early: bool = False
    """eval.patience has ended the run; it stays ended."""
    test: dict[str, float] = field(default_factory=dict)
    """What the best made of the test set, at the end."""
    restarts: int = 0
    """How often the run was started again."""

    def advance(self, examples: int, tokens: int, windows_per_epoch: int) -> None:
        """Count one finished step over a window of `examples` examples and `tokens` real tokens."""
        self.step += 1
        self.examples_seen += examples
        self.tokens_seen += tokens
        self.window += 1
        if self.window == windows_per_epoch:
            self.epoch, self.window = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

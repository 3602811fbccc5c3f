"""What is learned: a task turns rows into a batch and a batch into its items' losses. Only the step normalises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isostep.tasks.base import Answers, Encoded, Outcome, Task
from isostep.tasks.classification import Classification
from isostep.tasks.multi_label import MultiLabel
from isostep.tasks.regression import Regression
from isostep.tasks.text import TextTask
from isostep.tasks.token_classification import TokenClassification

if TYPE_CHECKING:
    from isostep.config import Config

__all__ = [
    "Answers",
    "Classification",
    "Encoded",
    "MultiLabel",
    "Outcome",
    "Regression",
    "Task",
    "TextTask",
    "TokenClassification",
    "make_task",
]


def make_task(config: Config) -> Task:
    """The task that task.kind and task.multi_label name."""
    if config.task.kind == "regression":
        return Regression()
    return MultiLabel() if config.task.multi_label else Classification()

"""What is learned: a task turns rows into a batch and a batch into its items' losses. Only the step normalises."""

from isostep.tasks.base import Outcome, Task
from isostep.tasks.classification import Classification

__all__ = ["Classification", "Outcome", "Task"]

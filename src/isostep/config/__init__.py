"""The configuration of a run: its keys (`schema`), reading and checking them (`load`), the `commandline`."""

from isostep.config.schema import (
    Batch,
    Checkpoint,
    Config,
    Data,
    Eval,
    Lora,
    Model,
    Optim,
    Run,
    Section,
    Task,
    Track,
    Train,
)

__all__ = [
    "Batch",
    "Checkpoint",
    "Config",
    "Data",
    "Eval",
    "Lora",
    "Model",
    "Optim",
    "Run",
    "Section",
    "Task",
    "Track",
    "Train",
]

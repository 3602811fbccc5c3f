"""Every key of a run, its type, its bounds, its default and what it means.

One frozen dataclass per section. The text under a field is what `--help` prints for it, and types and bounds are what a
YAML file and the command line are held to (see `load`). Building these classes in Python checks nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field


@dataclass(frozen=True)
class Inferred:
    """Marks a key whose null is replaced by a value while loading; `how` says by which."""

    how: str


# Strict: no text becomes a number, no boolean an integer, no integer a text. An integer is a number, though.
Text = Annotated[str, Field(strict=True, min_length=1)]
Switch = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]  # from 1
Natural = Annotated[int, Field(strict=True, ge=0)]  # from 0
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, gt=0, lt=1)]  # (0, 1)
Fraction = Annotated[float, Field(strict=True, ge=0, lt=1)]  # [0, 1)
Interval = Literal["epoch"] | Count
SetName = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_-]+$")]

LOWER_IS_BETTER = frozenset({"loss", "mse", "mae", "rmse"})


HandedIn = Literal["task", "train", "metrics"]


class Section:
    """Base of the sections: pydantic refuses keys they do not have."""

    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Run(Section):
    """Where the run lives and how it starts."""

    name: Annotated[Text, Inferred("the config file's name")] = "run"
    """Name of the run and of its folder below run.root; null: from the config file's name."""
    root: Text = "runs"
    """Folder that holds the run folders."""
    seed: Annotated[int, Field(strict=True, ge=0, le=2**32 - 1)] = 42
    """Seed of the order of examples, of new weights and of dropout."""
    resume: Text = "auto"
    """auto: go on from the newest checkpoint; never: refuse a folder that holds a run; or a checkpoint's path."""
    timeout: Positive = 900.0
    """Seconds until a collective operation that does not end aborts the run."""


@dataclass(frozen=True, kw_only=True)
class Task(Section):
    """What is learned."""

    kind: Literal["classification", "regression", "causal_lm"] = "classification"
    """classification of texts, regression on texts, or causal_lm (language modelling)."""
    multi_label: Switch = False
    """Classification where an example may carry any number of labels."""


@dataclass(frozen=True, kw_only=True)
class Data(Section):
    """What it is learned from."""

    path: Text | None = None
    """Hub dataset id, local folder or builtin:sms; null when the files are given by data.train."""
    name: Text | None = None
    """Configuration of the hub dataset, such as mrpc of nyu-mll/glue."""
    revision: Text | None = None
    """Branch, tag or commit of the hub dataset."""
    workers: Natural | None = None
    """Processes that load batches beside each rank; null: chosen for the machine."""
    train: Text | None = None
    """Split name, or file (csv, tsv, json, jsonl, parquet; globs) to train on; null: the split called train."""
    validation: Text | Annotated[dict[SetName, Text], Field(min_length=1)] | None = None
    """Split name or file to evaluate on, or several by name; null: the one called validation, else a part of train."""
    test: Text | None = None
    """Split name or file that is evaluated once, at the end."""
    validation_fraction: Share = 0.1
    """Share of train that is set aside for evaluation when there is no validation."""
    text: tuple[Text, ...] = ()
    """Column of the text, or the two columns of a pair of texts."""
    label: Text | Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Column of the label; several columns only with task.multi_label."""
    max_length: Count | None = None
    """Tokens an example is cut to; null: 256, causal_lm 2048; never beyond what the model can take."""
    max_train_examples: Count | None = None
    """Train on the first N rows only; null: on all."""
    prompt: Text | None = None
    """causal_lm: column of the prompt."""
    completion: Text | None = None
    """causal_lm: column of the completion."""
    messages: Text | None = None
    """causal_lm: column of a conversation's messages."""
    train_on: Literal["completion", "all"] = "completion"
    """causal_lm: tokens that are learned."""
    drop_empty: Switch = False
    """causal_lm: leave out examples without a token to learn, instead of stopping with an error."""


@dataclass(frozen=True, kw_only=True)
class Model(Section):
    """What learns."""

    path: Text
    """Hub id, local folder or builtin:tiny."""
    revision: Text | None = None
    """Branch, tag or commit of the hub model."""
    attention: Literal["auto", "varlen", "sdpa", "eager"] = "auto"
    """Attention implementation; varlen passes micro-batches without padding."""
    dropout: Fraction | None = None
    """Dropout probability everywhere in the model; null: the model's own."""
    trust_remote_code: Switch = False
    """Run Python code that comes with the model."""
    activation_checkpointing: Switch = False
    """Compute activations again in the backward pass: less memory, more time."""


@dataclass(frozen=True, kw_only=True)
class Lora(Section):
    """Train low-rank adapters instead of the weights; `--lora null` turns it off."""

    r: Count = 16
    """Rank of the adapters."""
    alpha: Count = 32
    """Adapters are scaled by alpha / r."""
    dropout: Fraction = 0.0
    """Dropout probability before the adapters."""
    targets: Text | Annotated[tuple[Text, ...], Field(min_length=1)] = "all-linear"
    """Modules that get an adapter: all-linear, or names."""
    save_modules: tuple[Text, ...] | None = None
    """Modules that are trained and saved whole; null: the new head."""
    quantization: Literal["none", "nf4"] = "none"
    """Storage of the frozen base: nf4 is 4-bit (QLoRA)."""


@dataclass(frozen=True, kw_only=True)
class Batch(Section):
    """How much at once. Only batch.size has an effect on the numbers."""

    size: Count = 32
    """Examples per optimizer step over all ranks, whatever the hardware."""
    tokens_per_device: Count | None = None
    """Most tokens, padding included, that one rank passes through the model at once; null: found automatically."""


@dataclass(frozen=True, kw_only=True)
class Optim(Section):
    """AdamW and its learning rate."""

    lr: Annotated[Positive, Inferred("5e-5; 2e-4 with lora")] = 5e-5
    """Peak learning rate."""
    weight_decay: NonNegative = 0.01
    """Weight decay; biases and norms are spared."""
    lora_weight_decay: NonNegative = 0.0
    """Weight decay of LoRA adapters."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of AdamW's running means of gradient and squared gradient."""
    eps: Positive = 1e-8
    """Term that keeps AdamW's denominator from zero."""
    max_grad_norm: Positive | None = 1.0
    """Norm that the gradient is clipped to; null: no clipping."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Course of the learning rate after the warm-up; linear and cosine fall to zero."""
    warmup: NonNegative = 0.06
    """Warm-up: below 1 a share of all steps, from 1 on a number of steps."""


@dataclass(frozen=True, kw_only=True)
class Train(Section):
    """How long, and in which precision."""

    epochs: Count = 3
    """Passes over the training examples."""
    max_steps: Count | None = None
    """Optimizer steps; wins over train.epochs."""
    precision: Literal["no", "bf16", "fp16"] | None = None
    """Mixed precision (no: fp32); null: what Accelerate was told."""
    nonfinite: Literal["skip", "stop"] = "skip"
    """What a step with a non-finite loss or gradient does: skip its update, or stop the run."""
    nonfinite_limit: Count = 10
    """Non-finite steps in a row after which the run stops as diverged."""


@dataclass(frozen=True, kw_only=True)
class Eval(Section):
    """When and how the model is judged, and which one is best."""

    every: Interval = "epoch"
    """Evaluate at the end of each epoch, or every N optimizer steps."""
    at_start: Switch = False
    """Evaluate once before the first step, too."""
    max_examples: Count | None = None
    """Evaluate on a fixed subset of N examples; null: on all."""
    train_examples: Natural = 0
    """Measure loss and accuracy on N fixed training examples, too."""
    metric: Text = "eval/loss"
    """Value that decides which model is best and when to stop early; of several sets the first one's."""
    mode: Literal["min", "max"] | None = None
    """Whether a lower or a higher metric is better; null: known from the metric."""
    patience: Count | None = None
    """Stop after so many evaluations in a row without a better one; null: never."""
    min_delta: NonNegative = 0.0
    """Least change of the metric that counts as better."""

    def __post_init__(self) -> None:
        metric = "eval/" + self.metric.removeprefix("eval/")
        object.__setattr__(self, "metric", metric)
        if self.mode is None:
            object.__setattr__(self, "mode", "min" if metric.rpartition("/")[2] in LOWER_IS_BETTER else "max")


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Section):
    """What a stopped run can go on from."""

    every: Interval = "epoch"
    """Save at the end of each epoch, or every N optimizer steps."""
    keep: Count = 2
    """Newest checkpoints that are kept; the best is kept as well."""


@dataclass(frozen=True, kw_only=True)
class Track(Section):
    """Weights & Biases, and the density of the record."""

    wandb: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: online with an API key, else offline."""
    project: Text | None = None
    """W&B project; null: W&B's own choice."""
    entity: Text | None = None
    """W&B user or team; null: the key's own."""
    group: Text | None = None
    """W&B group of runs."""
    tags: tuple[Text, ...] = ()
    """W&B tags."""
    notes: Text | None = None
    """W&B notes."""
    log_every: Count = 10
    """Optimizer steps between two rows of the record."""


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """The resolved configuration of one run."""

    run: Run = field(default_factory=Run)
    task: Task = field(default_factory=Task)
    data: Data = field(default_factory=Data)
    model: Model
    lora: Lora | None = None
    batch: Batch = field(default_factory=Batch)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    track: Track = field(default_factory=Track)

    def __post_init__(self) -> None:
        sets, name = self.data.validation, self.eval.metric.removeprefix("eval/")
        if isinstance(sets, dict) and "/" not in name:
            object.__setattr__(self.eval, "metric", f"eval/{next(iter(sets))}/{name}")

    @classmethod
    def load(cls, *paths: str | Path, overrides: Sequence[str] = (), handed_in: Collection[HandedIn] = ()) -> Config:
        """The configuration of YAML files, later ones winning, and of `overrides` written as on the command line.

        `Config.load("configs/csv.yaml", overrides=["--batch.size", "64"])`. Null keys that are decided by others
        (run.name, optim.lr, eval.mode) are filled in. `handed_in` names what `fit` will get from the program: the
        configuration need not name the data then, or may name a metric that it does not know.
        Raises ConfigError with one line for each problem.
        """
        from isostep.config.load import load

        return load(paths, overrides, handed_in)

    def to_dict(self) -> dict[str, Any]:
        """Sections as dicts of plain values; tuples become lists."""

        def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            return {key: list(value) if isinstance(value, tuple) else value for key, value in pairs}

        return dataclasses.asdict(self, dict_factory=plain)

    def to_yaml(self) -> str:
        """YAML text that `load` turns into an equal Config."""
        from isostep.config.syntax import dump

        return dump(self.to_dict())

"""`isostep predict`: what a trained model says of the rows of a file."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isostep.errors import ConfigError, DataError

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.data.files import Block
    from isostep.tasks import Answers, Task


def run(argv: Sequence[str]) -> int:
    """The command with its arguments (without its name); returns 0. Raises the errors of `predict`."""
    arguments = _parser().parse_args(argv)
    source, output = Path(arguments.input), Path(arguments.output)
    rows = predict(Path(arguments.run_dir), source, output, arguments.weights, arguments.batch_tokens)
    print(f"{rows} rows written to {output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isostep predict",
        description="Label the rows of a file: same rows, same order, plus the columns prediction and scores.",
        epilog="Formats by the file names' endings: csv, tsv, json, jsonl, parquet. A label column is not needed.",
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="folder of the run, which holds config.yaml")
    parser.add_argument(
        "--input", required=True, metavar="FILE", help="file with the text columns of the training data"
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="file to write, replaced only when it is whole")
    parser.add_argument(
        "--weights",
        metavar="best|final|PATH",
        help="whose weights; PATH is an exported folder (default: best, else final)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=_positive,
        default=8192,
        metavar="N",
        help="most tokens in one batch; the predictions do not depend on it (default: 8192)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def predict(run_dir: Path, source: Path, output: Path, weights: str | None = None, batch_tokens: int = 8192) -> int:
    """Write `source` with a prediction and scores for each row to `output`; returns the number of rows.

    Memory is bounded by a block of the reader's (some thousand rows). Raises ConfigError for a run, weights or an
    output that can't be used, DataError for an input that can't; `output` is then left as it was.
    """
    from isostep.cli.output import check_output, writing
    from isostep.data import files

    config = _config(run_dir, weights)
    check_output(output)
    blocks = files.read(source)
    first = next(blocks)
    _check_columns(config, first)  # before the model is loaded
    predictor = load(config)
    rows = 0
    with writing(output, source) as writer:
        for block in itertools.chain([first], blocks):
            _check_columns(config, block)
            writer.write(block, predictor(block, batch_tokens))
            rows += len(block)
    return rows


def _read(run_dir: Path) -> Config:
    """Task, data and model of config.yaml. The whole is not checked: training data given from Python is not in it."""
    from isostep.config import Config, Data, Model, Task
    from isostep.config.syntax import read

    path = run_dir / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{run_dir} is no run folder: it holds no config.yaml")
    tree, _ = read(path)
    try:
        data = Data(**{**tree["data"], "text": tuple(tree["data"]["text"])})
        return Config(task=Task(**tree["task"]), data=data, model=Model(**tree["model"]))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not what this version writes for a run: {error}") from error


def _config(run_dir: Path, weights: str | None) -> Config:
    """The run's configuration with model.path set to the folder of the weights."""
    config = _read(run_dir)
    if weights is None:
        folder = next((run_dir / name for name in ("best", "final") if (run_dir / name).is_dir()), None)
        if folder is None:
            raise ConfigError(f"{run_dir} holds neither best/ nor final/: the run has not exported a model yet")
    else:
        folder = run_dir / weights if weights in ("best", "final") else Path(weights)
        if not folder.is_dir():
            raise ConfigError(f"--weights: there is no folder {folder}")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(folder), revision=None))


def _columns(config: Config) -> list[str]:
    """The text columns; only data that is built in leaves them unnamed."""
    return list(config.data.text) or ["text"]


def _check_columns(config: Config, block: Block) -> None:
    from isostep.cli.output import ADDED
    from isostep.data.files import check_columns

    check_columns(block.source, _columns(config), list(block.columns))
    for name in ADDED:
        if name in block.columns:
            raise DataError(f"{block.source} has a column {name!r} already, and predict adds one: rename or remove it")


class Predictor(NamedTuple):
    """A trained model and its task, which knows how rows become batches and batches answers."""

    model: Any
    task: Task

    def __call__(self, block: Block, batch_tokens: int) -> Answers:
        """What is told of the block's rows, in their order.

        Rows of similar length share a batch of at most `batch_tokens` tokens with its padding; a longer row is alone.
        """
        import torch

        from isostep.tasks import Answers

        encoded = self.task.encode(block).columns
        lengths = [len(row) for row in encoded["input_ids"]]
        made = Answers([None] * len(lengths), [None] * len(lengths))
        with torch.inference_mode():
            for part in batches(lengths, batch_tokens):
                rows = [{key: values[i] for key, values in encoded.items()} for i in part]
                inputs = {key: value.to(self.model.device) for key, value in self.task.inputs(rows).items()}
                answers = self.task.answers(self.model, inputs)
                for i, prediction, score in zip(part, *answers, strict=True):
                    made.predictions[i], made.scores[i] = prediction, score
        return made


def load(config: Config) -> Predictor:
    """The exported model in the folder model.path with its task, on the GPU if there is one."""
    import torch

    from isostep.data.labels import Labels
    from isostep.models.load import load_trained
    from isostep.models.tokenizer import load_tokenizer, position_limit, resolve_max_length
    from isostep.tasks import make_task

    task = make_task(config)
    tokenizer = load_tokenizer(config, lambda: iter(()), Path(config.model.path))
    model: Any = load_trained(config, task.auto_class)
    task.begin(config, tokenizer, resolve_max_length(config, position_limit(model.config)))
    values = getattr(model.config, "label_values", None)
    if values is not None:
        task.labels = Labels(values, [model.config.id2label[index] for index in range(len(values))])
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    return Predictor(model, task)


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of rows by ascending length, cut so that rows x longest stays within `batch_tokens`."""
    part: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if part and (len(part) + 1) * max(1, lengths[index]) > batch_tokens:
            yield part
            part = []
        part.append(index)
    if part:
        yield part

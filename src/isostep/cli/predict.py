"""`isostep predict`: what a trained model says of the rows of a file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from isostep.errors import ConfigError, DataError, IsostepError

if TYPE_CHECKING:
    from isostep.cli.answer_files import AnswerFiles
    from isostep.config import Config
    from isostep.data.files import Block
    from isostep.tasks import Task
    from isostep.train.ranks import Ranks

BATCH_TOKENS = 8192


class Written(NamedTuple):
    """What `predict` wrote."""

    rows: int
    found: int
    """Of these, rows that an earlier, interrupted start had answered."""


def run(argv: Sequence[str]) -> int:
    """The command with its arguments (without its name); returns 0. Raises the errors of `predict`."""
    arguments = _parser().parse_args(argv)
    source, output = Path(arguments.input), Path(arguments.output)
    written = predict(Path(arguments.run_dir), source, output, arguments.weights, arguments.batch_tokens)
    if written is not None:
        found = f", {written.found} of them answered by an earlier start" if written.found else ""
        print(f"{written.rows} rows written to {output}{found}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isostep predict",
        description="Answer the rows of a file: same rows, same order, plus the columns prediction and scores.",
        epilog="Formats by the file names' endings: csv, tsv, json, jsonl, parquet. A label column is not needed. "
        "`accelerate launch -m isostep predict ...` shares the rows among several processes; the same command after "
        "an interruption goes on.",
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
        default=BATCH_TOKENS,
        metavar="N",
        help=f"most tokens in one batch; the predictions do not depend on it (default: {BATCH_TOKENS})",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def predict(
    run_dir: Path,
    source: Path,
    output: Path,
    weights: str | None = None,
    batch_tokens: int = BATCH_TOKENS,
    task: Task | None = None,
) -> Written | None:
    """Write `source` with a prediction and scores for each row to `output`; None on all ranks but the first.

    The ranks of this process' launcher share the input's blocks (some thousand rows; memory is bounded by one) and
    leave the answers as files beside the output, which the first one puts together. A start after a kill finds them.
    The output's bytes depend on neither. `task` is that which was handed to `fit`, where it reads or answers rows in a
    way of its own.

    Raises ConfigError for a run, weights or an output that can't be used, FolderInUseError where another process
    writes the same output, DataError for an input that can't be used; on all ranks alike. `output` is then left as it
    was.
    """
    from isostep.cli.output import check_output

    config = _config(run_dir, weights)
    check_output(output)

    from isostep.cli.answer_files import AnswerFiles  # after what can be told without torch
    from isostep.cli.run_folder import check_answers_are_known, task_of
    from isostep.data import files
    from isostep.train.ranks import end_process_group

    if source.exists() and not source.is_file():
        raise DataError(f"{source} is no regular file, and it is read more than once")
    if task is None:
        check_answers_are_known(run_dir)
    task = task or task_of(Path(config.model.path), config)
    _check_columns(task, config, next(files.read(source)))  # before anything that takes time
    ranks = _start(config.run.timeout)

    def is_main() -> bool:
        return ranks.is_main

    try:
        key = ranks.agree(lambda: _key(task, config, source, batch_tokens), only=is_main)
        answers = AnswerFiles(output, *ranks.share((key or "", uuid4().hex)))
        found = ranks.share(ranks.agree(lambda: _begin(answers), only=is_main))
        assert found is not None
        try:
            work = partial(_answer, task, config, source, batch_tokens, answers, found)
            _answer_together(ranks, answers, work, config.run.timeout)
            written = ranks.agree(lambda: _put_together(source, answers, found), only=is_main, patient=True)
        except IsostepError as error:
            # after a DataError the input has to change, and then nothing of this can be used
            if ranks.is_main and (isinstance(error, DataError) or not answers.answered()):
                answers.remove()
            raise
    except IsostepError:  # on all ranks
        end_process_group()
        raise
    end_process_group()
    return written


def _config(run_dir: Path, weights: str | None) -> Config:
    """The run's configuration with model.path set to the folder of the weights."""
    from isostep.cli.run_folder import exported, read_config

    config = read_config(run_dir)
    if weights is None:
        folder = exported(run_dir)
        if folder is None:
            raise ConfigError(f"{run_dir} holds neither best/ nor final/: the run has not exported a model yet")
    else:
        folder = run_dir / weights if weights in ("best", "final") else Path(weights)
        if not folder.is_dir():
            raise ConfigError(f"--weights: there is no folder {folder}")
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} holds no config.json: its model was handed in from Python, and only that program can build it"
        )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, path=str(folder), revision=None))


def _check_columns(task: Task, config: Config, block: Block) -> None:
    from isostep.cli.output import ADDED
    from isostep.data.files import check_columns

    check_columns(block.source, task.input_columns(config), list(block.columns))
    for name in ADDED:
        if name in block.columns:
            raise DataError(f"{block.source} has a column {name!r} already, and predict adds one: rename or remove it")


def _start(timeout_seconds: float) -> Ranks:
    """The ranks that the launcher started, over a CPU group; a single process starts none."""
    import torch.distributed as dist

    from isostep.train.ranks import Ranks, die_with_launcher

    die_with_launcher()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    rank, local_rank = (int(os.environ.get(key, "0")) for key in ("RANK", "LOCAL_RANK"))
    launched: Any = _Launched(rank, local_rank, world_size)
    return Ranks(launched, timeout_seconds)


class _Launched(NamedTuple):
    """What the launcher tells this process, by Accelerate's names."""

    process_index: int
    local_process_index: int
    num_processes: int


def _key(task: Task, config: Config, source: Path, batch_tokens: int) -> str:
    """xxh3 (128 bits) over all that the answers follow from: versions, settings, the weights' files and the input."""
    import torch
    import xxhash

    from isostep.checkpoint.store import describe
    from isostep.cli.predictor import device
    from isostep.data import files

    folder = Path(config.model.path)
    weights = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")
    facts = [
        [version("isostep"), version("transformers"), torch.__version__, device().type],
        [type(task).__qualname__, *task.fingerprint()],
        [dataclasses.asdict(part) for part in (config.data, config.model)],
        [batch_tokens, files.BLOCK_ROWS, files.BLOCK_CHARACTERS],
        [describe(path) for path in (*weights, source)],
    ]
    return xxhash.xxh3_128(json.dumps(facts).encode()).hexdigest()


def _begin(answers: AnswerFiles) -> set[int]:
    try:
        return answers.begin()
    except IsostepError:
        raise
    except OSError as error:
        raise ConfigError(f"--output: {answers.root} can't be written: {error.strerror or error}") from error


def _answer(task: Task, config: Config, source: Path, batch_tokens: int, answers: AnswerFiles, found: set[int]) -> None:
    """Answer the blocks that nobody has answered or claimed, until there is none, or another rank has failed."""
    from isostep.cli.answer_files import StoppedError
    from isostep.cli.predictor import load
    from isostep.data import files

    predictor = None
    try:
        for number, block in enumerate(files.read(source)):
            answers.check()
            if number in found or not answers.claim(number):
                continue
            _check_columns(task, config, block)
            predictor = predictor or load(config, task)
            answers.write(number, predictor(block, batch_tokens, answers.check))
    except StoppedError:
        return


def _answer_together(ranks: Ranks, answers: AnswerFiles, work: Callable[[], None], timeout_seconds: float) -> None:
    """Run `work` on all ranks until each block is answered; what is raised on one is raised on all.

    Raises TimeoutError where a rank stands still: outside of what is agreed on, which that one would never join.
    """
    failure: Exception | None = None
    try:
        work()
    except Exception as error:
        answers.fail()
        failure = error
    answers.wait(timeout_seconds)

    def outcome() -> None:
        if failure is not None:
            raise failure

    ranks.agree(outcome)


def _put_together(source: Path, answers: AnswerFiles, found: set[int]) -> Written:
    """The input with its answers, in order, into the output; the answers' files go."""
    from isostep.cli.output import writing
    from isostep.data import files

    rows = earlier = 0
    with writing(answers.output, source, answers.root / "output", answers.types) as writer:
        for number, block in enumerate(files.read(source)):
            part = answers.read(number)
            if part is None or len(part.predictions) != len(block):
                raise DataError(f"{source} has changed while it was read")
            writer.write(block, part)
            rows += len(block)
            earlier += len(block) * (number in found)
    answers.remove()
    return Written(rows, earlier)

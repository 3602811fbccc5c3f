"""Texts to tokens, once: every split is checked and tokenised block by block into a memory-mapped Arrow file.

The cache's fingerprint is made here from what the tokens follow from (content, columns, tokenizer, length, rows), so
a second start with the same data and tokenizer, in any process on any day, finds them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from isostep.data import token_cache
from isostep.data.files import Block
from isostep.data.labels import Labels
from isostep.data.sources import Sources
from isostep.data.splitting import split_off
from isostep.errors import ConfigError, DataError

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from isostep.config import Config
    from isostep.tasks import Task

log = logging.getLogger("isostep")

VERSION = 2
"""Part of the fingerprint: raise it with any change to what is written or to how a row becomes tokens."""

_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class TokenizedData:
    """The splits, each with the columns input_ids, labels and, where the model takes them, token_type_ids.

    `validation` holds each set under the prefix of its metrics: "eval", or "eval/NAME" where there are several.
    `summary` holds `rows` (of each split as trained on), `files` (of each split as read: rows, tokens, truncated,
    empty, label_counts by name), `max_length`, `cache` (the folder) and `reused` (nothing had to be tokenised).
    """

    train: datasets.Dataset
    validation: dict[str, datasets.Dataset]
    test: datasets.Dataset | None
    labels: Labels | None
    summary: dict[str, Any]


def load(config: Config, sources: Sources, task: Task) -> TokenizedData:
    """The checked and tokenised data of a configuration, from the cache where it is there.

    `task` has begun; its classes are set here. A validation part is split off from training where there is none.
    Raises DataError for every fault of the data, ConfigError for columns, a tokenizer or a length that can't work.
    """
    import datasets

    _check_tokenizer(task.tokenizer, len(task.input_columns(config)), task.max_length)
    key = fingerprint(config, sources, task)
    folder, meta, reused = token_cache.obtain(key, lambda made: _write(made, config, sources, task))
    task.labels = Labels.from_json(meta["labels"]) if meta["labels"] is not None else None
    try:
        parts = {name: datasets.Dataset.from_file(str(folder / f"{name}.arrow")) for name in sources.splits()}
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"the cached tokens {folder} are damaged ({error}); remove that folder") from error
    for name, part in meta["splits"].items():
        _tell(name, part, task.max_length)
    train, validation = with_validation(
        config, task, parts["train"], {_prefix(name): parts[_file(name)] for name in sources.validation}
    )
    summary = {
        "rows": {"train": len(train), **{name: len(part) for name, part in validation.items()}},
        "files": meta["splits"],
        "max_length": task.max_length,
        "cache": str(folder),
        "reused": reused,
    }
    return TokenizedData(train, validation, parts.get("test"), task.labels, summary)


def with_validation(
    config: Config, task: Task, train: datasets.Dataset, validation: dict[str, datasets.Dataset]
) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
    """The same, or with a part of the training rows as "eval" where there is no validation."""
    if validation:
        return train, validation
    fraction, seed = config.data.validation_fraction, config.run.seed
    classes = pa.types.is_integer(task.target_type)
    rest, chosen = split_off(train, fraction, seed, stratified=classes)
    log.info(
        "validation: no split is named, so %s of the %s training rows are split off "
        "(data.validation_fraction %g, %sseed %d)",
        f"{len(chosen):,}", f"{len(train):,}", fraction, "stratified by label, " if classes else "", seed,
    )  # fmt: skip
    return rest, {"eval": chosen}


def _prefix(validation: str) -> str:
    return f"eval/{validation}" if validation else "eval"


def _file(validation: str) -> str:
    return f"validation.{validation}" if validation else "validation"


def fingerprint(config: Config, sources: Sources, task: Task) -> str:
    """xxh3 (128 bits) over all that the tokens follow from."""
    tokenizer = task.tokenizer
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["truncation"] = state["padding"] = None  # these two are marks of the last use, not of the tokenizer
    parts = {
        "version": VERSION,
        "task": [config.task.kind, config.task.multi_label, *task.fingerprint()],
        "splits": {name: split.fingerprint() for name, split in sources.splits().items()},
        "names": {column: sources.train.label_names.get(column) for column in task.target_columns(config)},
        "text": task.input_columns(config),
        "label": task.target_columns(config),
        "rows": config.data.max_train_examples,
        "max_length": task.max_length,
        "tokenizer": state,
        "inputs": list(tokenizer.model_input_names),
        "truncation_side": tokenizer.truncation_side,
        "filler": _filler(tokenizer),
    }
    return xxhash.xxh3_128_hexdigest(json.dumps(parts, sort_keys=True).encode())


def texts(block: Block, columns: Sequence[str]) -> list[list[str]]:
    """The block's text columns, one list each. Raises DataError for a text that is missing or is none."""
    for column in columns:
        values = block.columns[column]
        if all(type(value) is str for value in values):
            try:
                "".join(values).encode()
                continue
            except UnicodeEncodeError:  # JSON can spell half of a surrogate pair, which is no character
                pass
        for row, value in enumerate(values):
            if value is None:
                raise DataError(f"{block.place(row)}: missing text (column {column!r})")
            if not isinstance(value, str):
                raise DataError(f"{block.place(row)}: column {column!r} holds {type(value).__name__}, not a text")
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise DataError(f"{block.place(row)}: column {column!r} holds half a surrogate pair, not valid text")
    return [block.columns[column] for column in columns]


def encode(
    tokenizer: PreTrainedTokenizerBase, columns: list[list[str]], max_length: int
) -> tuple[dict[str, list[list[int]]], int]:
    """Tokens of rows with one text or a pair, each at most `max_length` long, and how many rows were cut.

    The dict holds input_ids and, where the model takes them, token_type_ids. A pair is cut at its longer text. A row
    without any token (an empty text and a tokenizer that adds nothing) becomes one end-of-text token.
    """
    typed = "token_type_ids" in tokenizer.model_input_names
    made = tokenizer(
        *columns,
        truncation="longest_first",
        max_length=max_length,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=typed,
    )
    rows: dict[str, list[list[int]]] = {"input_ids": made["input_ids"]}
    if typed:
        rows["token_type_ids"] = made["token_type_ids"]
    cut = 0
    for row, ids in enumerate(rows["input_ids"]):
        if len(ids) == max_length:
            cut += bool(made.encodings[row].overflowing)
        elif not ids:
            rows["input_ids"][row] = [_filler(tokenizer)]
            if typed:
                rows["token_type_ids"][row] = [0]
    return rows, cut


def _filler(tokenizer: PreTrainedTokenizerBase) -> int:
    known = (tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id)
    return next((int(token) for token in known if token is not None), 0)


def training_texts(sources: Sources, columns: Sequence[str], limit: int | None, task: Task) -> Iterator[str]:
    """The texts of the first `limit` training rows (all: None), column by column of each block: for a tokenizer."""
    for block in _first(sources.train.blocks(columns), limit):
        yield from task.texts(block, columns)


def lengths(dataset: datasets.Dataset) -> np.ndarray:
    """Tokens of each row, int32 of shape (rows,), from the Arrow offsets: the tokens themselves are not read."""
    chunks = dataset.data.column("input_ids").chunks
    parts = [np.diff(chunk.offsets.to_numpy()).astype(np.int32) for chunk in chunks]
    found = np.concatenate(parts) if parts else np.zeros(0, np.int32)
    if dataset._indices is not None:  # what .select leaves behind
        found = found[dataset._indices.column(0).to_numpy()]
    return found


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, columns: int, max_length: int) -> None:
    if not tokenizer.is_fast:
        raise ConfigError(f"model.path: {type(tokenizer).__name__} is no fast tokenizer (tokenizer.json is missing)")
    special = tokenizer.num_special_tokens_to_add(pair=columns == 2)
    if max_length < special + columns:  # below it the tokenizer cuts nothing at all, in silence
        raise ConfigError(
            f"data.max_length: {max_length} leaves no room for text beside the tokenizer's {special} special tokens; "
            f"make it {special + columns} or more"
        )


def _first(blocks: Iterator[Block], limit: int | None) -> Iterator[Block]:
    """The blocks of the first `limit` rows."""
    left = limit
    for block in blocks:
        if left is not None and len(block) >= left:
            columns = {name: values[:left] for name, values in block.columns.items()}
            yield Block(columns, block.source, block.numbers[:left], block.unit)
            return
        yield block
        left = None if left is None else left - len(block)


def _write(folder: Path, config: Config, sources: Sources, task: Task) -> token_cache.Meta:
    task.labels = task.survey(sources.train)
    columns = [*task.input_columns(config), *task.target_columns(config)]
    splits = {}
    for name, split in sources.splits().items():
        blocks = _first(split.blocks(columns), config.data.max_train_examples if name == "train" else None)
        splits[name] = _write_split(folder / f"{name}.arrow", name, blocks, task)
    found = task.labels.to_json() if task.labels is not None else None
    return {"version": VERSION, "labels": found, "max_length": task.max_length, "splits": splits}


def _write_split(path: Path, name: str, blocks: Iterator[Block], task: Task) -> dict[str, Any]:
    """Tokenise block by block into an Arrow stream; what was met on the way, for the summary."""
    kinds = {"input_ids": pa.list_(pa.int32()), "labels": task.target_type}
    if "token_type_ids" in task.tokenizer.model_input_names:
        kinds["token_type_ids"] = pa.list_(pa.int8())
    schema = pa.schema(list(kinds.items()))
    rows = tokens = truncated = empty = 0
    counts = np.zeros(len(task.labels) if task.labels is not None else 0, np.int64)
    start = told = time.monotonic()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for block in blocks:
            encoded = task.encode(block)
            targets = task.targets(block, encoded)
            values = {**encoded.columns, "labels": targets}
            writer.write_batch(pa.record_batch([pa.array(values[k], kind) for k, kind in kinds.items()], schema=schema))
            rows += len(block)
            tokens += sum(map(len, encoded.columns["input_ids"]))
            truncated += encoded.truncated
            empty += encoded.empty
            if task.labels is not None:
                counts += task.label_counts(targets)
            if (now := time.monotonic()) - told >= _PROGRESS_SECONDS:
                log.info("tokenising %s: %s rows, %s rows/s", name, f"{rows:,}", f"{rows / (now - start):,.0f}")
                told = now
    named = dict(zip(task.labels.names, counts.tolist(), strict=True)) if task.labels is not None else {}
    return {"rows": rows, "tokens": tokens, "truncated": truncated, "empty": empty, "label_counts": named}


def _tell(name: str, part: dict[str, Any], max_length: int) -> None:
    cut = f", {part['truncated']:,} cut at {max_length}" if part["truncated"] else ""
    log.info("%s: %s rows, %s tokens%s", name, f"{part['rows']:,}", f"{part['tokens']:,}", cut)
    if part["empty"]:
        log.warning("%s: %s rows with an empty text; they are kept", name, f"{part['empty']:,}")

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

from isostep.data import labels as classes
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

log = logging.getLogger("isostep")

VERSION = 1
"""Part of the fingerprint: raise it with any change to what is written or to how a row becomes tokens."""

_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class TokenizedData:
    """The splits, each with the columns input_ids, labels and, where the model takes them, token_type_ids.

    `summary` holds `rows` (of each split as trained on), `files` (of each split as read: rows, tokens, truncated,
    empty, label_counts by name), `max_length`, `cache` (the folder) and `reused` (nothing had to be tokenised).
    """

    train: datasets.Dataset
    validation: datasets.Dataset
    test: datasets.Dataset | None
    labels: Labels
    summary: dict[str, Any]


def load(config: Config, sources: Sources, tokenizer: PreTrainedTokenizerBase, max_length: int) -> TokenizedData:
    """The checked and tokenised data of a configuration, from the cache where it is there.

    A validation part is split off from training where the configuration names none.
    Raises DataError for every fault of the data, ConfigError for a tokenizer or length that can't work.
    """
    import datasets

    _check_tokenizer(tokenizer, len(sources.text), max_length)
    limit = config.data.max_train_examples
    key = fingerprint(config, sources, tokenizer, max_length)
    folder, meta, reused = token_cache.obtain(key, lambda made: _write(made, sources, tokenizer, max_length, limit))
    labels = Labels.from_json(meta["labels"])
    try:
        parts = {name: datasets.Dataset.from_file(str(folder / f"{name}.arrow")) for name in sources.splits()}
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"the cached tokens {folder} are damaged ({error}); remove that folder") from error
    for name, part in meta["splits"].items():
        _tell(name, part, max_length)
    if "validation" not in parts:
        fraction, seed = config.data.validation_fraction, config.run.seed
        parts["train"], parts["validation"] = split_off(parts["train"], fraction, seed)
        log.info(
            "validation: no split is named, so %s of the %s training rows are split off "
            "(data.validation_fraction %g, stratified by label, seed %d)",
            f"{len(parts['validation']):,}", f"{meta['splits']['train']['rows']:,}", fraction, seed,
        )  # fmt: skip
    summary = {
        "rows": {name: len(part) for name, part in parts.items()},
        "files": meta["splits"],
        "max_length": max_length,
        "cache": str(folder),
        "reused": reused,
    }
    return TokenizedData(parts["train"], parts["validation"], parts.get("test"), labels, summary)


def fingerprint(config: Config, sources: Sources, tokenizer: PreTrainedTokenizerBase, max_length: int) -> str:
    """xxh3 (128 bits) over all that the tokens follow from."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["truncation"] = state["padding"] = None  # these two are marks of the last use, not of the tokenizer
    parts = {
        "version": VERSION,
        "task": config.task.kind,
        "splits": {name: split.fingerprint() for name, split in sources.splits().items()},
        "names": sources.train.label_names.get(sources.label),
        "text": sources.text,
        "label": sources.label,
        "rows": config.data.max_train_examples,
        "max_length": max_length,
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


def training_texts(sources: Sources, limit: int | None) -> Iterator[str]:
    """The texts of the first `limit` training rows (all: None), column by column of each block: for a tokenizer."""
    for block in _first(sources.train.blocks(sources.text), limit):
        for column in texts(block, sources.text):
            yield from column


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


def _write(
    folder: Path, sources: Sources, tokenizer: PreTrainedTokenizerBase, max_length: int, limit: int | None
) -> token_cache.Meta:
    labels = classes.find(sources.train, sources.label)
    splits = {}
    for name, split in sources.splits().items():
        blocks = _first(split.blocks([*sources.text, sources.label]), limit if name == "train" else None)
        splits[name] = _write_split(folder / f"{name}.arrow", name, blocks, sources, labels, tokenizer, max_length)
    return {"version": VERSION, "labels": labels.to_json(), "max_length": max_length, "splits": splits}


def _write_split(
    path: Path,
    name: str,
    blocks: Iterator[Block],
    sources: Sources,
    labels: Labels,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> dict[str, Any]:
    """Tokenise block by block into an Arrow stream; what was met on the way, for the summary."""
    kinds = {"input_ids": pa.list_(pa.int32()), "labels": pa.int64()}
    if "token_type_ids" in tokenizer.model_input_names:
        kinds["token_type_ids"] = pa.list_(pa.int8())
    schema = pa.schema(list(kinds.items()))
    rows = tokens = truncated = empty = 0
    counts = np.zeros(len(labels), np.int64)
    start = told = time.monotonic()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for block in blocks:
            columns = texts(block, sources.text)
            targets = classes.indices(labels, block, sources.label)
            encoded, cut = encode(tokenizer, columns, max_length)
            values = {**encoded, "labels": targets}
            writer.write_batch(pa.record_batch([pa.array(values[k], kind) for k, kind in kinds.items()], schema=schema))
            rows += len(block)
            tokens += sum(map(len, encoded["input_ids"]))
            truncated += cut
            empty += sum(not all(text.strip() for text in row) for row in zip(*columns, strict=True))
            counts += np.bincount(targets, minlength=len(labels))
            if (now := time.monotonic()) - told >= _PROGRESS_SECONDS:
                log.info("tokenising %s: %s rows, %s rows/s", name, f"{rows:,}", f"{rows / (now - start):,.0f}")
                told = now
    return {
        "rows": rows,
        "tokens": tokens,
        "truncated": truncated,
        "empty": empty,
        "label_counts": dict(zip(labels.names, counts.tolist(), strict=True)),
    }


def _tell(name: str, part: dict[str, Any], max_length: int) -> None:
    cut = f", {part['truncated']:,} cut at {max_length}" if part["truncated"] else ""
    log.info("%s: %s rows, %s tokens%s", name, f"{part['rows']:,}", f"{part['tokens']:,}", cut)
    if part["empty"]:
        log.warning("%s: %s rows with an empty text; they are kept", name, f"{part['empty']:,}")

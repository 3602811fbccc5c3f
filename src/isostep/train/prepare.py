"""From the configuration to tokenised data: once a node, the same on every rank, before any model is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import torch
import xxhash

from isostep.data.sources import Sources, resolve
from isostep.data.token_cache import cache_root
from isostep.data.tokens import TokenizedData, lengths, load, training_texts
from isostep.errors import ConfigError, DataError
from isostep.models.tokenizer import load_tokenizer, max_positions, resolve_max_length

if TYPE_CHECKING:
    from isostep.config import Config
    from isostep.train.parts import Parts
    from isostep.train.ranks import Ranks
    from isostep.train.stop import Stop

TOKEN_BUDGET = {"cpu": 2048, "cuda": 16384}


def token_budget(config: Config, device: torch.device) -> int:
    """The most tokens in one micro-batch: batch.tokens_per_device, or what suits the device."""
    return config.batch.tokens_per_device or TOKEN_BUDGET.get(device.type, TOKEN_BUDGET["cpu"])


def make_data(config: Config, parts: Parts) -> TokenizedData:
    """The tokenised data of a configuration, or of what was handed in; from the caches where it is there. One process.

    `parts.task` has begun and knows its classes afterwards.
    """
    task, limit = parts.task, config.data.max_train_examples
    max_length = resolve_max_length(config, max_positions(config))
    given = parts.train is not None and "input_ids" in parts.train.column_names

    def sources() -> Sources:
        return resolve(config) if parts.train is None else parts.sources()

    def texts() -> Iterator[str]:
        if given:
            raise ConfigError(
                "model.path: builtin:tiny makes its tokenizer from texts, and the rows are tokens already"
            )
        return training_texts(sources(), task.input_columns(config), limit, task)

    tokenizer = load_tokenizer(config, texts, cache_root())
    task.begin(config, tokenizer, max_length)
    return parts.tokenised() if given else load(config, sources(), task)


def prepare_data(config: Config, parts: Parts, ranks: Ranks, stop: Stop) -> TokenizedData:
    """The checked, tokenised data on every rank; tokenised by one process a node.

    Raises DataError or ConfigError on all ranks alike, DataError too where the nodes see different data, and
    PreemptedError where a signal comes while it works.
    """

    def make() -> TokenizedData:
        with stop.preparing():
            return make_data(config, parts)

    data = ranks.on_each_node(make)
    digests = ranks.gather(digest(data))
    if len(set(digests)) > 1:
        odd = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
        raise DataError(
            f"rank {odd} sees other data than rank 0: are the files and the model's tokenizer the same on every node?"
        )
    return data


def digest(data: TokenizedData) -> str:
    """Differs where ranks would plan different windows, train on other tokens or read labels differently."""
    state = xxhash.xxh3_64(repr(data.labels).encode())
    for rows in (data.train, *data.validation.values(), *([data.test] if data.test is not None else [])):
        state.update(lengths(rows).tobytes())
        for name in ("input_ids", "labels"):
            for chunk in rows.data.column(name).chunks:  # memory-mapped: read once, at the speed of the disk
                values = chunk.flatten() if pa.types.is_nested(chunk.type) else chunk
                state.update(values.to_numpy(zero_copy_only=False).tobytes())
        if rows._indices is not None:  # what .select leaves behind
            state.update(rows._indices.column(0).to_numpy().tobytes())
    return state.hexdigest()

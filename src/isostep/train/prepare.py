"""From the configuration to tokenised data: once a node, the same on every rank, before any model is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xxhash

from isostep.data.sources import resolve
from isostep.data.token_cache import cache_root
from isostep.data.tokens import TokenizedData, lengths, load, training_texts
from isostep.errors import DataError
from isostep.models.tokenizer import load_tokenizer, max_positions, resolve_max_length

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from isostep.config import Config
    from isostep.train.ranks import Ranks
    from isostep.train.stop import Stop

TOKEN_BUDGET = {"cpu": 2048, "cuda": 16384}


def token_budget(config: Config, device: torch.device) -> int:
    """The most tokens in one micro-batch: batch.tokens_per_device, or what suits the device."""
    return config.batch.tokens_per_device or TOKEN_BUDGET.get(device.type, TOKEN_BUDGET["cpu"])


def make_data(config: Config) -> tuple[TokenizedData, PreTrainedTokenizerBase]:
    """The tokenised data of a configuration and its tokenizer, from the caches where they are there; one process."""
    max_length = resolve_max_length(config, max_positions(config))
    sources = resolve(config)
    limit = config.data.max_train_examples
    tokenizer = load_tokenizer(config, lambda: training_texts(sources, limit), cache_root())
    return load(config, sources, tokenizer, max_length), tokenizer


def prepare_data(config: Config, ranks: Ranks, stop: Stop) -> tuple[TokenizedData, PreTrainedTokenizerBase]:
    """The checked, tokenised data and its tokenizer, on every rank; tokenised by one process a node.

    Raises DataError or ConfigError on all ranks alike, DataError too where the nodes see different data, and
    PreemptedError where a signal comes while it works.
    """

    def make() -> tuple[TokenizedData, PreTrainedTokenizerBase]:
        with stop.preparing():
            return make_data(config)

    data, tokenizer = ranks.on_each_node(make)
    digests = ranks.gather(digest(data))
    if len(set(digests)) > 1:
        odd = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
        raise DataError(
            f"rank {odd} sees other data than rank 0: are the files and the model's tokenizer the same on every node?"
        )
    return data, tokenizer


def digest(data: TokenizedData) -> str:
    """Differs where ranks would plan different windows, train on other tokens or read labels differently."""
    state = xxhash.xxh3_64(repr(data.labels).encode())
    for rows in (data.train, data.validation):
        state.update(lengths(rows).tobytes())
        for name in ("input_ids", "labels"):
            for chunk in rows.data.column(name).chunks:  # memory-mapped: read once, at the speed of the disk
                values = chunk.flatten() if name == "input_ids" else chunk
                state.update(values.to_numpy().tobytes())
        if rows._indices is not None:  # what .select leaves behind
            state.update(rows._indices.column(0).to_numpy().tobytes())
    return state.hexdigest()

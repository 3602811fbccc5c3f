"""The tokenizer of the configured model, and how long its sequences may be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from isostep.errors import ConfigError
from isostep.models.pretrained import check_source, is_tiny, model_config, options, quiet, refusing
from isostep.models.tiny import POSITIONS, tiny_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from isostep.config import Config

log = logging.getLogger(__name__)

DEFAULT_MAX_LENGTH = 256

# Families that number positions from the padding token's id + 1, so that the first rows of their table are unused.
OFFSET_POSITIONS = frozenset(
    {
        *(
            "roberta",
            "roberta-prelayernorm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "camembert",
            "xmod",
            "longformer",
            "mpnet",
        ),
        *("data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "luke", "markuplm"),
    }
)


def load_tokenizer(config: Config, texts: Callable[[], Iterator[str]], cache: Path) -> PreTrainedTokenizerBase:
    """The fast tokenizer of model.path, padding on the right, always with a padding token.

    `texts` gives the training texts anew at each call and is used by builtin:tiny alone, whose tokenizer is trained on
    them once and kept under `cache`. Raises ConfigError, naming model.path, when there is no usable tokenizer.
    """
    if is_tiny(config):
        tokenizer = tiny_tokenizer(texts, cache)
    else:
        check_source(config)
        tokenizer = _pretrained_tokenizer(config)
    for key in ("is_local", "local_files_only"):  # where it was loaded from, which save_pretrained would write down
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.padding_side = "right"
    _ensure_padding(config, tokenizer)
    return tokenizer


def _pretrained_tokenizer(config: Config) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    path = config.model.path
    with refusing(config), quiet():
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, use_fast=True, **options(config))
    if not tokenizer.is_fast:
        raise ConfigError(f"model.path: {path} has no fast tokenizer (tokenizer.json), and only those are supported")
    # Without any tokenizer file transformers makes one of the special tokens alone, and every text becomes [UNK].
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ConfigError(f"model.path: {path} holds no tokenizer (no tokenizer.json or vocabulary file)")
    return tokenizer


def _ensure_padding(config: Config, tokenizer: PreTrainedTokenizerBase) -> None:
    if tokenizer.pad_token_id is not None:
        return
    for kind in ("eos_token", "unk_token"):
        token = getattr(tokenizer, kind)
        if token is not None:
            tokenizer.pad_token = token
            log.info("the tokenizer has no padding token: its %s %r is used", kind, str(token))
            return
    raise ConfigError(
        f"model.path: the tokenizer of {config.model.path} has no padding, end or unknown token to pad with; "
        "set pad_token in its tokenizer_config.json"
    )


def max_positions(config: Config) -> int | None:
    """The most tokens that the model of model.path takes at once; None where it sets no limit. Reads no weights."""
    return POSITIONS if is_tiny(config) else position_limit(model_config(config))


def position_limit(model: PretrainedConfig) -> int | None:
    """The longest sequence, in tokens with special ones, that a model with this configuration takes; None: any."""
    text = model.get_text_config()
    for key in ("max_position_embeddings", "n_positions", "max_seq_len"):
        limit = getattr(text, key, None)
        if isinstance(limit, int) and limit > 0:
            break
    else:
        return None
    if text.model_type not in OFFSET_POSITIONS:
        return limit
    # MPNet's embedding has the offset written into its code, whatever the padding token.
    padding = 1 if text.model_type == "mpnet" else text.pad_token_id
    return limit - padding - 1


def resolve_max_length(config: Config, limit: int | None) -> int:
    """data.max_length in tokens: null means 256, or `limit` (`max_positions`) where the model takes less.

    Raises ConfigError when more is asked for than the model takes.
    """
    wanted = config.data.max_length
    if wanted is None:
        return DEFAULT_MAX_LENGTH if limit is None else min(DEFAULT_MAX_LENGTH, limit)
    if limit is not None and wanted > limit:
        raise ConfigError(
            f"data.max_length: {wanted} is beyond the {limit} tokens that {config.model.path} takes; "
            "lower it or use null"
        )
    return int(wanted)

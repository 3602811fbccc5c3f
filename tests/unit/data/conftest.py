from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "far", "away", "and", "then", "some", "more"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A token cache of the test's own."""
    root = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ISOSTEP_CACHE", str(root))
    return root


@pytest.fixture
def config() -> Callable[..., Any]:
    """Makes a configuration of what the data modules read; keywords are keys of `data`."""

    def make(seed: int = 7, **data: Any) -> Any:
        keys = {
            "path": None, "name": None, "revision": None, "train": None, "validation": None, "test": None,
            "validation_fraction": 0.1, "text": ("text",), "label": "label", "max_train_examples": None,
        }  # fmt: skip
        made = {key: str(value) if isinstance(value, Path) else value for key, value in {**keys, **data}.items()}
        run, task = SimpleNamespace(seed=seed), SimpleNamespace(kind="classification", multi_label=False)
        return SimpleNamespace(data=SimpleNamespace(**made), run=run, task=task)

    return make


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Whole words and the special tokens of BERT: a text of n words has n + 2 tokens."""
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )

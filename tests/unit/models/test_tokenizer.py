from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertTokenizer

from isostep.errors import ConfigError
from isostep.models.pretrained import quiet
from isostep.models.tiny import tiny_tokenizer
from isostep.models.tokenizer import load_tokenizer, max_positions, resolve_max_length


def none() -> Any:
    raise AssertionError("the texts are read")


def test_local_tokenizer_is_the_saved_one(saved: Callable[..., Path], made: Callable[..., Any], tmp_path: Path) -> None:
    folder = saved("bert")
    tokenizer = load_tokenizer(made(folder), none, tmp_path)
    pair = ("the man is here", "a man was there")
    assert tokenizer(*pair).data == AutoTokenizer.from_pretrained(folder)(*pair).data
    assert tokenizer.padding_side == "right" and tokenizer.pad_token == "[PAD]"


def test_without_pad_token_the_end_token_pads_and_the_log_says_so(
    saved: Callable[..., Path], made: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "isostep"):
        tokenizer = load_tokenizer(made(saved("llama")), none, tmp_path)
    assert tokenizer.pad_token == "</s>" and tokenizer.padding_side == "right"
    assert "no padding token" in caplog.text and "'</s>'" in caplog.text


@pytest.mark.parametrize(("unknown", "pad"), [("<unk>", "<unk>"), (None, None)])
def test_without_pad_and_end_token_the_unknown_one_or_an_error(
    saved: Callable[..., Path], made: Callable[..., Any], tmp_path: Path, unknown: str | None, pad: str | None
) -> None:
    folder = saved("llama")
    file = folder / "tokenizer_config.json"
    settings = {**json.loads(file.read_text()), "eos_token": None, "unk_token": unknown}
    file.write_text(json.dumps(settings))
    if pad:
        assert load_tokenizer(made(folder), none, tmp_path).pad_token == pad
    else:
        with pytest.raises(ConfigError, match=r"^model.path: .*pad"):
            load_tokenizer(made(folder), none, tmp_path)


@pytest.mark.parametrize(
    "path", ["no/such/model", "./nowhere", "/no/where", "isostep-tests/no-such-model", "a b", "x" * 120]
)
def test_no_such_model_is_one_quick_line_on_model_path(made: Callable[..., Any], tmp_path: Path, path: str) -> None:
    start = time.monotonic()
    for call in (lambda: load_tokenizer(made(path), none, tmp_path), lambda: max_positions(made(path))):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value).startswith("model.path: ") and path in str(caught.value)
        assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 20


def test_folders_that_lack_something(saved: Callable[..., Path], made: Callable[..., Any], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match=r"^model.path: .*empty holds no config.json"):
        load_tokenizer(made(empty), none, tmp_path)
    bare = saved("bert")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"^model.path: .* holds no tokenizer"):
        load_tokenizer(made(bare), none, tmp_path)
    broken = saved("bert")
    (broken / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"^model.path: .* can't be loaded") as caught:
        load_tokenizer(made(broken), none, tmp_path)
    assert "\n" not in str(caught.value)
    (broken / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^model.path: .* can't be loaded"):
        max_positions(made(broken))


def test_remote_code_is_refused_unless_asked_for(
    saved: Callable[..., Path], made: Callable[..., Any], tmp_path: Path
) -> None:
    folder = saved("bert")
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(
        f"from transformers import PreTrainedConfig\nopen({str(ran)!r}, 'w').close()\n"
        "class Own(PreTrainedConfig):\n    model_type = 'own'\n    max_position_embeddings = 77\n"
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}))
    with pytest.raises(ConfigError, match=r"model.trust_remote_code: true") as caught:
        max_positions(made(folder))
    assert not ran.exists() and "\n" not in str(caught.value)
    assert max_positions(made(folder, trust_remote_code=True)) == 77 and ran.exists()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "llama"])
def test_max_positions_is_the_longest_sequence_that_the_model_takes(
    saved: Callable[..., Path], made: Callable[..., Any], family: str
) -> None:
    folder = saved(family)
    limit = max_positions(made(folder))
    assert limit == 64
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(folder, pad_token_id=1)
    for length in (limit, limit + 1):
        try:
            model(input_ids=torch.full((1, length), 5), attention_mask=torch.ones(1, length, dtype=torch.int64))
            fits = True
        except (IndexError, RuntimeError):
            fits = False
        assert fits == (length <= limit) or family == "llama"  # rotary positions go on, less well


def test_resolve_max_length(made: Callable[..., Any]) -> None:
    assert resolve_max_length(made("builtin:tiny"), None) == 256
    assert resolve_max_length(made("builtin:tiny"), 512) == 256
    assert resolve_max_length(made("builtin:tiny"), 64) == 64
    assert resolve_max_length(made("builtin:tiny", 64), 64) == 64
    assert resolve_max_length(made("builtin:tiny", 4096), None) == 4096
    with pytest.raises(ConfigError, match=r"^data.max_length: 65 .* 64 "):
        resolve_max_length(made("builtin:tiny", 65), 64)
    assert max_positions(made("builtin:tiny")) == 512


TRAIN = """
import random, sys
from pathlib import Path
from isostep.models.tiny import tiny_tokenizer
rng = random.Random(0)
words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(1, 7))) for _ in range(800)]
texts = [" ".join(rng.choices(words, k=9)) + " \\u00e9!" + chr(0x4E00 + rng.randint(0, 900)) for _ in range(900)]
tiny_tokenizer(lambda: iter(texts), Path(sys.argv[1]))
"""


def test_tiny_tokenizer_is_the_same_file_in_every_process(tmp_path: Path) -> None:
    """Hash maps are seeded anew in each process, and threads sum in another order."""
    jobs: list[tuple[subprocess.Popen[bytes], Path]] = []
    for name in ("true", "false"):
        env = {**os.environ, "TOKENIZERS_PARALLELISM": name, "PYTHONHASHSEED": "random"}
        cache = tmp_path / f"{len(jobs)}"
        jobs.append((subprocess.Popen([sys.executable, "-c", TRAIN, str(cache)], env=env), cache))
    files = []
    for job, cache in jobs:
        assert job.wait(120) == 0
        files.append({path.relative_to(cache): path.read_bytes() for path in cache.rglob("*") if path.is_file()})
    assert {path.name for path in files[0]} == {"tokenizer.json", "tokenizer_config.json"}
    assert files[0] == files[1]


def test_tiny_tokenizer_is_trained_once_and_is_a_bert_tokenizer(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tiny_tokenizer(lambda: iter(texts), tmp_path)
    (folder,) = (tmp_path / "tokenizers").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("isostep.models.tiny.train", none)
        second = tiny_tokenizer(lambda: iter(texts), tmp_path)
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()
    assert type(second) is BertTokenizer and second.is_fast
    pair = second("The man, HÉRE", "a man")
    assert second.convert_ids_to_tokens(pair["input_ids"])[:4] == ["[CLS]", "the", "man", "[UNK]"]
    assert sum(pair["token_type_ids"]) == 3
    tiny_tokenizer(lambda: iter(texts[1:]), tmp_path)
    assert len(list((tmp_path / "tokenizers").iterdir())) == 2  # other texts, and nothing half made left
    assert folder.stat().st_mode & 0o777 == 0o755


def test_tiny_tokenizer_of_texts_without_any_word(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(lambda: iter(["", " "]), tmp_path)
    assert tokenizer("anything")["input_ids"] == [2, 1, 3]

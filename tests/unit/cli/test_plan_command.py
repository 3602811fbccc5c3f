"""isostep plan: usage errors, and --show against the rows and the tokenizer themselves."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

from isostep.cli import plan, show
from isostep.config import Config
from isostep.data.plan import Plan
from isostep.data.tokens import lengths
from isostep.errors import ConfigError
from isostep.tasks import TokenClassification
from isostep.train.parts import Parts
from isostep.train.prepare import make_data

WORDS = [f"w{i}" for i in range(40)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOSTEP_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: Any) -> Path:
    """A folder with a tokenizer of whole words, and a configuration; there are no weights."""
    folder: Path = tmp_path_factory.mktemp("model")
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*SPECIAL, *WORDS, "\x1b[31m", "日本"])}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    BertConfig(vocab_size=64, max_position_embeddings=64).save_pretrained(folder)
    return folder


def arguments(model: Path, *more: str) -> list[str]:
    return ["--run.name", "x", "--model.path", str(model), "--batch.size", "4", *more]


def texts(n: int, longest: int = 12) -> list[list[str]]:
    draw = np.random.default_rng(0)
    return [draw.choice(WORDS, draw.integers(1, longest + 1)).tolist() for _ in range(n)]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with open(path, "w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return str(path)


def shown(capsys: Any, argv: list[str]) -> list[list[str]]:
    """The lines of each row."""
    assert plan.run(argv) == 0
    out = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in out)
    assert all(len(line) <= 100 for line in out.splitlines() if line.startswith("  "))
    return [part.splitlines() for part in out.split("\n\n")[1:]]


def said(lines: list[str], name: str) -> list[str]:
    """What stands in the lines of a name, all of them together."""
    found, inside = [], False
    for line in lines[1:]:
        inside = line[2:9].strip() == name or (inside and not line[:9].strip())
        found += line[9:].split() if inside else []
    return found


@pytest.mark.parametrize("length", [6, 64])
def test_each_row_is_what_training_is_fed(tmp_path, capsys, model, length):
    words = texts(30)
    rows = [{"text": " ".join(row), "kind": "ab"[len(row) % 2]} for row in words]
    data = ["--data.train", write(tmp_path / "a.csv", rows), "--data.validation", write(tmp_path / "b.csv", rows),
            "--data.text", "text", "--data.label", "kind", "--data.max_length", str(length)]  # fmt: skip
    argv = arguments(model, *data, "--batch.tokens_per_device", "40")
    got = shown(capsys, ["--show", "30", "--world-size", "2", *argv])
    assert len(got) == 30
    sizes = np.array([min(len(row) + 2, length) for row in words], np.int32)
    reference = Plan(sizes, 4, 2, 40, 42)
    for number, (lines, row) in enumerate(zip(got, words, strict=True)):
        assert lines[0] == f"row {number + 1}  {tmp_path}/a.csv:{number + 2}"
        kept = ["[CLS]", *row[: length - 2], "[SEP]"]
        step = reference.order(0).tolist().index(number) // 4
        parts = [(rank, part) for ranks in reference.window(0, step).passes for rank, part in enumerate(ranks)]
        rank, part = next(pair for pair in parts if pair[1].weight and number in pair[1].indices)
        wide = int(sizes[list(part.indices)].max())
        beside = f" with {len(part.indices) - 1} others" if len(part.indices) > 1 else ""
        assert lines[1] == f"  batch  epoch 1, step {step + 1}, rank {rank}{beside}, {wide} tokens wide"
        padding = ["[PAD]", f"x{wide - len(kept)}"] if wide > len(kept) else []
        assert said(lines, "pieces") == [*kept, *padding]
        assert said(lines, "mask") == [*"1" * len(kept), *"0" * bool(padding)]
        assert said(lines, "label") == [rows[number]["kind"], f"({'ab'.index(rows[number]['kind'])})"]
        tail = row[length - 2 :]
        told = [str(len(tail)), "of", str(len(row) + 2), "tokens:", *tail] if tail else ["nothing"]
        assert said(lines, "cut") == told


def test_pieces_stand_above_their_mask_and_long_rows_are_broken_together(tmp_path, capsys, model):
    long = [{"text": " ".join((WORDS * 2)[:60]), "kind": "a"}, {"text": "日本 w1 \x1b[31m", "kind": "b"}]
    data = ["--data.train", write(tmp_path / "a.csv", long), "--data.validation", str(tmp_path / "a.csv"),
            "--data.text", "text", "--data.label", "kind"]  # fmt: skip
    first, second = shown(capsys, ["--show", "9", *arguments(model, *data)])
    pairs = [pair for pair in pairwise(first) if pair[0][2:8] == "pieces"]
    assert len(pairs) == 3
    for pieces, mask in pairs:
        assert mask[2:6] == "mask"
        starts = [at for at in range(9, len(pieces)) if pieces[at] != " " and pieces[at - 1] == " "]
        assert [at for at in range(9, len(mask)) if mask[at] != " " and mask[at - 1] == " "] == starts
    assert second[2].startswith(r"  pieces [CLS] 日本 w1 \x1b[31m [SEP] [PAD] x")
    assert second[3].startswith("  mask   1     1    1  1        1     0")


def test_rows_keep_their_place_where_others_are_split_off(tmp_path, capsys, model):
    rows = [{"text": f"{WORDS[i]} w1", "kind": "ab"[i % 2]} for i in range(40)]
    data = ["--data.train", write(tmp_path / "a.csv", rows), "--data.text", "text", "--data.label", "kind"]
    got = shown(capsys, ["--show", "40", *arguments(model, *data)])
    assert len(got) == 36
    for number, lines in enumerate(got, 1):
        row, line = lines[0].split(f"  {tmp_path}/a.csv:")
        assert row == f"row {number}" and said(lines, "pieces")[1] == WORDS[int(line) - 2]


def test_pairs_show_segments_and_what_was_cut_of_each(tmp_path, capsys, model):
    rows = [{"a": "w1 w2 w3 w4 w5", "b": "w6 w7 w8 w9 w10 w11 w12", "score": 0.25}]
    rows += [{"a": "w1", "b": "w2", "score": 1}]
    data = ["--task.kind", "regression", "--data.train", write(tmp_path / "a.csv", rows), "--data.text", "a",
            "b", "--data.label", "score", "--data.validation", str(tmp_path / "a.csv"),
            "--data.max_length", "9"]  # fmt: skip
    first, second = shown(capsys, ["--show", "2", *arguments(model, *data)])
    assert said(first, "pieces") == ["[CLS]", "w1", "w2", "w3", "[SEP]", "w6", "w7", "w8", "[SEP]"]
    assert said(first, "segment") == ["0", "0", "0", "0", "0", "1", "1", "1", "1"]
    assert said(first, "label") == ["0.25"] and said(second, "label") == ["1.0"]
    cut = [line[9:] for line in first if line[2:5] == "cut"]
    assert cut == ["2 of 15 tokens: w4 w5", "4 of 15 tokens: w9 w10 w11 w12"]


def test_several_labels_are_listed(tmp_path, capsys, model):
    rows = [{"text": "w1", "tags": ["x", "z"]}, {"text": "w2", "tags": ["y"]}, {"text": "w3", "tags": []}]
    data = ["--task.multi_label", "true", "--data.train", write(tmp_path / "a.jsonl", rows), "--data.text", "text",
            "--data.label", "tags", "--data.validation", str(tmp_path / "a.jsonl")]  # fmt: skip
    got = shown(capsys, ["--show", "3", *arguments(model, *data)])
    assert [" ".join(said(lines, "label")) for lines in got] == ["[x (0), z (2)]", "[y (1)]", "[]"]


def test_labels_of_tokens_stand_below_their_pieces(tmp_path, model):
    rows = [{"words": ["w1", "w2 w3", "w4"], "tags": ["B-PER", "O", "O"]}, {"words": ["w5"], "tags": ["O"]}]
    data = ["--data.train", write(tmp_path / "a.jsonl", rows), "--data.text", "words", "--data.label", "tags",
            "--data.validation", str(tmp_path / "a.jsonl"), "--data.max_length", "5"]  # fmt: skip
    config, task = Config.load(overrides=arguments(model, *data), handed_in=("task",)), TokenClassification()
    made = make_data(config, Parts(task))
    planned = plan.Planned(config, task, made, Plan(lengths(made.train), 4, 1, 99, 0, task.items(made.train)))
    lines = list(show.show(planned, 2))[1:7]
    assert lines[2:] == [
        "  pieces [CLS] w1      w2  w3 [SEP]",
        "  mask   1     1       1   1  1",
        "  label  -     B-PER/0 O/1 -  -",
        "  cut    1 of 6 tokens: w4",
    ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_was_removed_is_found_again(side):
    draw = np.random.default_rng(3)
    for _ in range(200):
        a, b = (draw.integers(5, 8, draw.integers(1, 9)).tolist() for _ in range(2))
        left, right = int(draw.integers(1, len(a) + 1)), int(draw.integers(1, len(b) + 1))
        kept_a, kept_b = (a[:left], b[:right]) if side == "right" else (a[-left:], b[-right:])
        whole, kept = [2, *a, 3, *b, 3], [2, *kept_a, 3, *kept_b, 3]
        runs = show._removed(whole, kept)
        gone = [i for run in runs for i in range(run.start, run.stop)]
        assert [token for i, token in enumerate(whole) if i not in gone] == kept
        assert sum(i <= len(a) for i in gone) == len(a) - left
    assert show._removed([2, 5, 3], [2, 6, 3]) is None and show._removed([2, 3], [2, 6, 3]) is None


@pytest.mark.parametrize("flag", ["--world-size", "--world_size", "--show"])
@pytest.mark.parametrize("value", ["x", "0", "-1", "1.5", None])
def test_a_wrong_number_is_one_line(flag, value):
    with pytest.raises(ConfigError, match=f"^isostep plan: argument {flag}: ") as caught:
        plan.run([flag] if value is None else [f"{flag}={value}"])
    assert "\n" not in str(caught.value)


def test_only_the_first_process_prints(tmp_path, capsys, model, monkeypatch):
    rows = [{"text": "w1", "kind": "a"}, {"text": "w2", "kind": "b"}]
    data = ["--data.train", write(tmp_path / "a.csv", rows), "--data.validation", str(tmp_path / "a.csv"),
            "--data.text", "text", "--data.label", "kind"]  # fmt: skip
    monkeypatch.setenv("RANK", "1")
    assert plan.run(["--show", "2", *arguments(model, *data)]) == 0
    assert capsys.readouterr().out == ""


def test_help_names_the_options():
    done = subprocess.run([sys.executable, "-m", "isostep", "plan", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and all(word in done.stdout for word in ("--show N", "--world-size N", "--data.train"))

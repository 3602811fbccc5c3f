"""Token classification, handed to fit from Python, keeps the promises; a pipeline of transformers answers alike."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launch import HERE, environment
from proofs import Runs, assert_bit_equal, assert_same_curve, rows, short
from torch.nn import functional

GIVEN, FAMILY = ["Mara", "Tilo", "Jun", "Odette"], ["Brandt", "Okafor", "Lindqvist", "Sato"]
PLACES = ["Lisbon", "Oslo", "Quito", "Nagasaki"]
PLAIN = ["met", "in", "and", "saw", "the", "harbour", "yesterday", "wrote", "from", "a", "friend"]


def sentence(draw: np.random.Generator) -> dict[str, list[str]]:
    words, tags = [], []
    for _ in range(draw.integers(1, 9)):
        kind = draw.integers(4)
        if kind == 0:
            words += [str(draw.choice(GIVEN)), str(draw.choice(FAMILY))]
            tags += ["B-PER", "I-PER"]
        else:
            words.append(str(draw.choice(PLACES if kind == 1 else PLAIN)))
            tags.append("B-LOC" if kind == 1 else "O")
    return {"words": words, "tags": tags}


def write(path: Path, n: int, seed: int) -> str:
    draw = np.random.default_rng(seed)
    path.write_text("".join(json.dumps(sentence(draw)) + "\n" for _ in range(n)))
    return str(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Runs:
    work = tmp_path_factory.mktemp("tags")
    data = {"path": None, "text": ["words"], "label": "tags", "max_length": 8}
    data |= {"train": write(work / "train.jsonl", 80, 0), "validation": write(work / "own.jsonl", 31, 1)}
    config = short(data=data, eval={"metric": "f1", "mode": "max", "every": 5}, train={"epochs": 3})
    return Runs(work, config, HERE / "tagging.py")


def test_p1_the_curve_is_the_same_on_any_number_of_ranks_and_any_token_budget(runs):
    reference = runs.whole(1, 1024)
    names = {key for row in rows(reference) for key in row if key.startswith("eval/") and "train" not in key}
    assert names == {f"eval/{name}" for name in ("loss", "accuracy", "precision", "recall", "f1")}
    for world, budget in ((2, 60), (3, 1024), (3, 30)):
        assert_same_curve(reference, runs.whole(world, budget))


def test_p3_killed_the_same_command_gives_the_same_weights(runs):
    assert_bit_equal(runs.whole(2), runs.resumed(2))


def test_p4_gone_on_with_on_another_number_of_ranks_it_is_the_same_curve(runs):
    assert_same_curve(runs.whole(1, 1024), runs.resumed(3, 90))


def labelled(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def first_tokens(tokenizer: Any, words: list[str], length: int) -> tuple[Any, list[int]]:
    """The row as the model gets it, and where its words begin; those of words that were cut off are missing."""
    made = tokenizer(words, is_split_into_words=True, truncation=True, max_length=length, return_tensors="pt")
    ids = made.word_ids()
    return made, [ids.index(number) for number in range(len(words)) if number in ids]


def test_losses_are_per_labelled_token_left_after_truncation(runs):
    """eval/loss and eval/accuracy of the final weights, row by row by transformers alone."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    folder = runs.whole(2) / "final"
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    losses, right, given = [], 0, 0
    with torch.no_grad():
        for row in labelled(runs.work / "own.jsonl"):
            inputs, firsts = first_tokens(tokenizer, row["words"], 8)
            logits = model(**inputs).logits[0][firsts]
            wanted = torch.tensor([model.config.label2id[tag] for tag in row["tags"][: len(firsts)]])
            losses += functional.cross_entropy(logits, wanted, reduction="none").tolist()
            right += int((logits.argmax(-1) == wanted).sum())
            given += len(row["tags"])
    last = [row for row in rows(runs.whole(2)) if "eval/loss" in row][-1]
    assert last["step"] == 15 and len(losses) < given  # some words were cut off
    assert math.isclose(last["eval/loss"], sum(losses) / len(losses), rel_tol=1e-5)
    assert last["eval/accuracy"] == right / len(losses)


PIPELINE = """
import json, sys
import torch
from transformers import pipeline

pipe = pipeline("token-classification", model=sys.argv[1], device="cpu")
answers = []
for line in open(sys.argv[2]):
    words = json.loads(line)["words"]
    logits = pipe.model(**pipe.tokenizer(words, is_split_into_words=True, return_tensors="pt")).logits[0]
    # every token but special ones, with a place in the words joined by one space
    found = pipe([words], is_split_into_words=True, ignore_labels=[], aggregation_strategy="none")[0]
    answers.append([logits.tolist(), [(one["start"], one["entity"], float(one["score"])) for one in found]])
assert "isostep" not in sys.modules
print(json.dumps(answers))
"""


def test_transformers_pipeline_in_a_fresh_process_answers_the_same(runs, tmp_path):
    from transformers import AutoTokenizer

    from isostep.config import Config
    from isostep.data import files
    from isostep.data.labels import Labels
    from isostep.models.load import load_trained
    from isostep.tasks import TokenClassification

    best, source = runs.whole(2) / "best", runs.work / "own.jsonl"
    done = subprocess.run([sys.executable, "-c", PIPELINE, str(best), str(source)], env=environment(1), text=True,
                          capture_output=True, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = Config.load(runs.whole(2) / "config.yaml", overrides=["--model.path", str(best)], handed_in=("task",))
    task, model = TokenClassification(), load_trained(config, TokenClassification.auto_class)
    task.begin(config, AutoTokenizer.from_pretrained(best), 64)
    task.labels = Labels.of(model.config.label_values)
    block = next(files.read(source))
    encoded = task.encode(block)
    tagged = set()
    for i, (logits, found) in enumerate(json.loads(done.stdout)):
        inputs = task.inputs([{key: values[i] for key, values in encoded.columns.items()}])
        with torch.no_grad():
            torch.testing.assert_close(model(**inputs).logits[0], torch.tensor(logits), rtol=1e-5, atol=1e-6)
            answers = task.answers(model, inputs, [encoded.words[i]])
        starts = np.cumsum([0, *(len(word) + 1 for word in block.columns["words"][i])])[:-1].tolist()
        by_start = {start: (tag, score) for start, tag, score in found}
        assert [by_start[start][0] for start in starts] == answers.predictions[0]
        assert [by_start[start][1] for start in starts] == pytest.approx(answers.scores[0], rel=1e-5)
        tagged |= set(answers.predictions[0])
    assert len(tagged) > 1, "a model that says one thing alone shows nothing"

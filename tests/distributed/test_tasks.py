"""Regression and several labels keep the promises; several validation sets; a test set, evaluated once."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from proofs import Runs, assert_bit_equal, assert_same_curve, rows, short, status
from torch.nn import functional

WORDS = ["quick", "slow", "red", "green", "good", "bad", "cat", "dog", "runs", "sleeps", "here", "there"]
CLASSES = ["animal", "colour", "speed"]
MEMBERS = {"animal": {"cat", "dog"}, "colour": {"red", "green"}, "speed": {"quick", "slow"}}


def texts(n: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(1, 20))) for _ in range(n)]


def scores(folder: Path, name: str, n: int, seed: int) -> str:
    """text,score: how many more words are good than bad."""
    with open(folder / name, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "score"])
        table.writerows([text, text.split().count("good") - text.split().count("bad")] for text in texts(n, seed))
    return str(folder / name)


def marks(text: str) -> list[int]:
    return [int(bool(MEMBERS[name] & set(text.split()))) for name in CLASSES]


def columns(folder: Path, name: str, n: int, seed: int) -> str:
    """text and a column of 0 and 1 for each class."""
    with open(folder / name, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", *CLASSES])
        table.writerows([text, *marks(text)] for text in texts(n, seed))
    return str(folder / name)


def lists(folder: Path, name: str, n: int, seed: int) -> str:
    """text and the list of its classes, which may be empty."""
    with open(folder / name, "w") as file:
        for text in texts(n, seed):
            tags = [name for name, mark in zip(CLASSES, marks(text), strict=True) if mark]
            file.write(json.dumps({"text": text, "tags": tags}) + "\n")
    return str(folder / name)


def settings(folder: Path, kind: str) -> dict[str, Any]:
    """100 rows: regression with two validation sets, columns with one, lists with none; the first two with a test."""
    many = {"kind": "classification", "multi_label": True}
    if kind == "regression":
        task: dict[str, Any] = {"kind": "regression"}
        sets: Any = {"own": scores(folder, "own.csv", 31, 1), "strange": scores(folder, "strange.csv", 17, 2)}
        data = {"train": scores(folder, "train.csv", 100, 0), "validation": sets, "label": "score"}
        data["test"] = scores(folder, "test.csv", 23, 3)
    elif kind == "columns":
        task = many
        data = {"train": columns(folder, "train.csv", 100, 0), "validation": columns(folder, "own.csv", 31, 1)}
        data |= {"label": CLASSES, "test": columns(folder, "test.csv", 23, 3)}
    else:
        task, data = many, {"train": lists(folder, "train.jsonl", 100, 0), "label": "tags"}
    # nothing gets better by so much: the first evaluation stays the best, so best/ and final/ differ
    return short(task=task, data={**data, "path": None, "text": ["text"]}, eval={"min_delta": 100}, optim={"lr": 3e-3})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    made = {}

    def of(kind: str) -> Runs:
        if kind not in made:
            work = tmp_path_factory.mktemp(kind)
            made[kind] = Runs(work, settings(work, kind))
        return made[kind]

    return of


each = pytest.mark.parametrize("kind", ["regression", "columns", "lists"])


@each
def test_p1_the_curve_is_the_same_on_any_number_of_ranks_and_any_token_budget(runs, kind):
    reference = runs(kind).whole(1, 1024)
    for world, budget in ((2, 150), (3, 90)):
        assert_same_curve(reference, runs(kind).whole(world, budget))


@each
def test_p3_killed_the_same_command_gives_the_same_weights(runs, kind):
    assert_bit_equal(runs(kind).whole(2), runs(kind).resumed(2))


@each
def test_p4_gone_on_with_on_another_number_of_ranks_it_is_the_same_curve(runs, kind):
    assert_same_curve(runs(kind).whole(1, 1024), runs(kind).resumed(3, 90))


def test_several_validation_sets_stand_side_by_side_and_the_first_decides(runs):
    folder = runs("regression").whole(1, 1024)
    evaluated = [row for row in rows(folder) if "eval/own/loss" in row]
    assert [row["step"] for row in evaluated] == [5, 10, 14]
    for row in evaluated:
        names = {key for key in row if key.startswith("eval/")}
        metrics = ("loss", "mse", "rmse", "mae", "r2", "pearson", "spearman")
        assert names == {f"eval/{where}/{name}" for where in ("own", "strange", "train") for name in metrics}
        assert row["eval/own/loss"] == pytest.approx(row["eval/own/mse"], rel=1e-6)
        assert row["eval/own/loss"] != row["eval/strange/loss"]
    history = json.loads((folder / "history.json").read_text())
    assert history["val_losses"] == [row["eval/own/loss"] for row in evaluated]
    assert history["val_accs"] == [None, None, None]
    assert (status(folder)["best_step"], status(folder)["best_value"]) == (5, evaluated[0]["eval/own/loss"])


def test_eval_metric_may_name_another_set_which_best_and_history_then_follow(tmp_path):
    config = settings(tmp_path, "regression")
    config["eval"] |= {"metric": "strange/mae", "min_delta": 0}
    folder = Runs(tmp_path, config).whole(1)
    evaluated = [row for row in rows(folder) if "eval/strange/mae" in row]
    assert status(folder)["best_value"] == min(row["eval/strange/mae"] for row in evaluated)
    history = json.loads((folder / "history.json").read_text())
    assert history["val_losses"] == [row["eval/strange/loss"] for row in evaluated]


def plain_test_loss(folder: Path, weights: str, kind: str, work: Path) -> float:
    """The mean loss of the test set, row by row, by transformers alone."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder / weights).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / weights)
    losses = []
    with torch.no_grad(), open(work / "test.csv", newline="") as file:
        for row in csv.DictReader(file):
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits[0]
            if kind == "regression":
                losses.append((logits[0] - float(row["score"])).square())
            else:
                wanted = torch.tensor([float(row[name]) for name in CLASSES])
                losses.append(functional.binary_cross_entropy_with_logits(logits, wanted))
    return float(torch.stack(losses).double().mean())


@pytest.mark.parametrize("kind", ["regression", "columns"])
def test_the_best_is_evaluated_on_the_test_set_at_the_end(runs, kind):
    folder = runs(kind).whole(2)
    tested = [row for row in rows(folder) if any(key.startswith("test/") for key in row)]
    assert len(tested) == 1 and tested[0] == rows(folder)[-1] and tested[0]["step"] == 14
    values = {key: value for key, value in tested[0].items() if key.startswith("test/")}
    assert status(folder)["best_step"] == 5
    assert values["test/loss"] == pytest.approx(plain_test_loss(folder, "best", kind, runs(kind).work), rel=1e-5)
    assert values["test/loss"] != pytest.approx(plain_test_loss(folder, "final", kind, runs(kind).work), rel=1e-3)
    assert values.items() <= status(folder).items()
    card, final = ((folder / name / "README.md").read_text() for name in ("best", "final"))
    for key, value in values.items():
        assert f"| {key} | {value:.6g} |" in card
    at_best = next(row for row in rows(folder) if row["step"] == 5)
    assert all(f"| {key} | {at_best[key]:.6g} |" in card for key in at_best if key.startswith("eval/"))
    assert "optimizer step 5." in card and "test/" not in final and "optimizer step 14." in final


def test_killed_in_the_test_or_right_after_it_the_test_stands_once(runs):
    tried = runs("regression")
    for site, rank in (("test", 1), ("test row", 0), ("tested", 0)):
        done = tried.start("killed in the test", 2, fault={"site": site, "kind": "kill", "rank": rank})
        assert done.returncode != 0, done.stdout
        folder = tried.work / "killed in the test"
        assert status(folder)["state"] in ("running", "failed")  # failed: the other rank could still say so
        assert sum("test/loss" in row for row in rows(folder)) == (site == "tested")
    done = tried.start("killed in the test", 2)
    assert done.returncode == 0, done.stdout
    assert (status(folder)["state"], status(folder)["restarts"]) == ("completed", 3)
    assert_bit_equal(tried.whole(2), folder)
    assert status(folder)["test/loss"] == status(tried.whole(2))["test/loss"]

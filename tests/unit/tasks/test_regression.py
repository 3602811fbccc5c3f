"""Regression: losses against transformers' own, metrics against loops and scipy, and every bad target by its place."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from isostep.errors import DataError
from isostep.tasks import Regression

NAMES = {"mse", "rmse", "mae", "r2", "pearson", "spearman"}


def test_the_mean_of_the_item_losses_is_the_loss_of_transformers():
    torch.manual_seed(0)
    shape = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                       **Regression().head())  # fmt: skip
    model = BertForSequenceClassification(shape).eval()
    batch = {"inputs": {"input_ids": torch.randint(5, 20, (6, 4))}, "labels": torch.randn(6)}
    theirs = model(**batch["inputs"], labels=batch["labels"])
    outcome = Regression().forward(model, batch)
    assert outcome.losses.shape == (6,) and outcome.rows is None
    torch.testing.assert_close(outcome.losses.mean(), theirs.loss)
    assert torch.equal(outcome.predictions, theirs.logits[:, 0]) and torch.equal(outcome.targets, batch["labels"])


def naive(p, t):
    """By loops over the definitions."""
    n, mean_p, mean_t = len(t), sum(p) / len(p), sum(t) / len(t)
    mse = sum((a - b) ** 2 for a, b in zip(p, t, strict=True)) / n
    product = sum((a - mean_p) * (b - mean_t) for a, b in zip(p, t, strict=True))
    spread_p, spread_t = sum((a - mean_p) ** 2 for a in p), sum((b - mean_t) ** 2 for b in t)
    return {
        "mse": mse,
        "rmse": mse**0.5,
        "mae": sum(abs(a - b) for a, b in zip(p, t, strict=True)) / n,
        "r2": 1 - mse * n / spread_t,
        "pearson": product / (spread_p * spread_t) ** 0.5,
    }


def test_metrics_are_those_of_the_definitions():
    draw = np.random.default_rng(0)
    targets = draw.normal(size=40).round(1).astype(np.float32)  # with ties
    predictions = (targets + draw.normal(size=40)).astype(np.float32)
    got = Regression().metrics(predictions, targets)
    wanted = naive(predictions.astype(float).tolist(), targets.astype(float).tolist())
    wanted["spearman"] = naive(stats.rankdata(predictions), stats.rankdata(targets))["pearson"]
    assert got == pytest.approx(wanted, rel=1e-9) and set(got) == NAMES


def test_a_large_common_offset_costs_no_digits():
    """In fp32 the squares of such numbers differ by less than their last digit."""
    targets = np.arange(8, dtype=np.float32) + 1e4
    got = Regression().metrics(targets + np.float32(0.5), targets)
    assert got["mse"] == 0.25 and got["mae"] == 0.5 and got["pearson"] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("predictions", "targets", "wanted"),
    [
        ([2.0], [1.0], {"mse": 1.0, "r2": 0.0, "pearson": 0.0, "spearman": 0.0}),
        ([3.0, 3.0, 3.0], [1.0, 2.0, 3.0], {"pearson": 0.0, "spearman": 0.0, "mae": 1.0, "r2": -1.5}),
        ([1.0, 2.0], [4.0, 4.0], {"pearson": 0.0, "spearman": 0.0, "mse": 6.5}),
        ([1.0, 2.0], [1.0, 2.0], {"mse": 0.0, "rmse": 0.0, "r2": 1.0, "pearson": 1.0, "spearman": 1.0}),
    ],
)
def test_degenerate_sets_have_finite_metrics_and_no_warning(predictions, targets, wanted, recwarn):
    got = Regression().metrics(np.float32(predictions), np.float32(targets))
    assert set(got) == NAMES and all(math.isfinite(value) for value in got.values())
    assert {name: got[name] for name in wanted} == pytest.approx(wanted, abs=1e-12)
    assert not recwarn.list


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_finite_make_every_metric_nan(bad, recwarn):
    got = Regression().metrics(np.float32([1, bad, 2]), np.float32([1, 2, 3]))
    assert set(got) == NAMES and all(math.isnan(value) for value in got.values())
    assert not recwarn.list


def test_targets_of_every_format(surveyed, jsonl, csv, parquet):
    texts = ["1", "-2.5", "1e3", " 7 ", "0"]
    assert surveyed(Regression(), "y", csv("text,y", *(f"x,{t}" for t in texts))) == [1.0, -2.5, 1000.0, 7.0, 0.0]
    assert surveyed(Regression(), "y", jsonl("1", "-2.5", "1e3", '"4"')) == [1.0, -2.5, 1000.0, 4.0]
    assert surveyed(Regression(), "y", parquet(text=["x", "x"], y=[1, 2])) == [1.0, 2.0]
    task = Regression()
    assert all(type(value) is float for value in surveyed(task, "y", parquet(text=["x"], y=[0.25])))
    assert task.labels is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "the target is empty"),
        ("  ", "the target is empty"),
        ("high", "the target 'high' is no number"),
        ("nan", "the target nan is not finite"),
        ("-inf", "the target -inf is not finite"),
        ("1e400", "the target inf is not finite"),
        ("1e39", "the target 1e+39 is not finite in fp32"),
    ],
)
def test_a_bad_target_in_csv_is_named_by_its_line_and_column(surveyed, csv, value, said):
    path = csv("text,y", "x,1", f"x,{value}", "x,2")
    with pytest.raises(DataError) as caught:
        surveyed(Regression(), "y", path)
    assert str(caught.value).startswith(f"{path}:3: {said}") and str(caught.value).endswith("(column 'y')")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("null", "the target is missing"),
        ('{"text": "x"}', "the target is missing"),
        ("true", "the target is bool, not a number"),
        ("[1]", "the target is list, not a number"),
        ('""', "the target is empty"),
        ('"much"', "the target 'much' is no number"),
        ("NaN", "the target nan is not finite"),
        ("Infinity", "the target inf is not finite"),
        ("1e400", "the target inf is not finite"),
        ("1" + "0" * 400, "the target 1000"),
    ],
)
def test_a_bad_target_in_jsonl_is_named_by_its_line_and_column(surveyed, jsonl, value, said):
    path = jsonl("1", "2.5", value)
    with pytest.raises(DataError) as caught:
        surveyed(Regression(), "y", path)
    assert str(caught.value).startswith(f"{path}:3: {said}") and str(caught.value).endswith("(column 'y')")


def test_targets_are_fp32_in_a_batch():
    task = Regression()
    task.begin(None, type("T", (), {"pad_token_id": 0}), 8)
    labels = task.collate([{"input_ids": [1], "labels": 0.1}, {"input_ids": [2, 3], "labels": 2}])["labels"]
    assert labels.dtype == torch.float32 and labels.tolist() == [pytest.approx(0.1), 2.0]


def test_answers_are_the_numbers():
    class Sum(nn.Module):
        def forward(self, input_ids):
            return {"logits": input_ids.float().sum(-1, keepdim=True)}

    got = Regression().answers(Sum(), {"input_ids": torch.tensor([[1, 2], [3, 4]])})
    assert got.predictions == [3.0, 7.0] and got.scores == [{"value": 3.0}, {"value": 7.0}]

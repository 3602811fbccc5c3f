"""Several labels a row: losses against transformers' own, metrics against loops, and every bad label by its place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from isostep.errors import ConfigError, DataError
from isostep.tasks import MultiLabel


def task(labels):
    made = MultiLabel()
    made.labels = labels
    return made


def test_the_mean_of_the_item_losses_is_the_loss_of_transformers(labels):
    torch.manual_seed(0)
    ours = task(labels("a", "b", "c"))
    head = {name: value for name, value in ours.head().items() if name != "label_values"}
    shape = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
                       **head)  # fmt: skip
    model = BertForSequenceClassification(shape).eval()
    batch = {"inputs": {"input_ids": torch.randint(5, 20, (6, 4))}, "labels": torch.randint(0, 2, (6, 3)).float()}
    theirs = model(**batch["inputs"], labels=batch["labels"])
    outcome = ours.forward(model, batch)
    assert outcome.losses.shape == (6,) and outcome.rows is None
    torch.testing.assert_close(outcome.losses.mean(), theirs.loss)
    assert torch.equal(outcome.predictions, theirs.logits.sigmoid() > 0.5)


def test_losses_of_a_float64_model_are_not_rounded(labels):
    logits, marks = torch.randn(5, 3, dtype=torch.float64), torch.randint(0, 2, (5, 3)).float()
    chances = logits.sigmoid()
    by_hand = -torch.where(marks > 0, chances, 1 - chances).log().mean(-1)
    torch.testing.assert_close(task(labels(0, 1, 2)).item_losses(logits, marks), by_hand, rtol=1e-14, atol=0)


def share(part, whole):
    return part / whole if whole else 0.0


def naive(predictions, targets):
    """By loops: counts of each class, then of all together."""
    rows, classes = targets.shape
    counts = []
    for c in range(classes):
        pairs = [(bool(predictions[r, c]), bool(targets[r, c])) for r in range(rows)]
        counts.append([pairs.count((True, True)), pairs.count((True, False)), pairs.count((False, True))])

    def scores(hit, wrong, missed):
        p, r = share(hit, hit + wrong), share(hit, hit + missed)
        return share(2 * hit, 2 * hit + wrong + missed), p, r

    each, micro = [scores(*count) for count in counts], scores(*(sum(column) for column in zip(*counts, strict=True)))
    made = {"accuracy": sum(all(predictions[r] == targets[r]) for r in range(rows)) / rows}
    for at, name in enumerate(("f1", "precision", "recall")):
        made[f"{name}_micro"] = micro[at]
        made[f"{name}_macro"] = sum(one[at] for one in each) / classes
    return made


@pytest.mark.parametrize(
    ("predicted", "true"), [(0.5, 0.5), (0.1, 0.1), (0.0, 0.5), (0.5, 0.0), (0.0, 0.0), (1.0, 1.0), (1.0, 0.0)]
)
@pytest.mark.parametrize(("rows", "classes"), [(30, 4), (1, 3), (7, 1)])
def test_metrics_are_those_of_the_definitions_also_where_a_class_has_no_case(predicted, true, rows, classes, recwarn):
    draw = np.random.default_rng(3)
    predictions = draw.random((rows, classes)) < predicted
    targets = (draw.random((rows, classes)) < true).astype(np.float32)
    assert MultiLabel().metrics(predictions, targets) == pytest.approx(naive(predictions, targets), abs=1e-12)
    assert not recwarn.list


def test_columns_of_0_and_1_in_every_spelling(surveyed, jsonl, csv, parquet):
    ours = MultiLabel()
    spelled = csv("text,b,a", "x,0,1", "x,True,false", "x,1,1")
    assert surveyed(ours, ("b", "a"), spelled) == [[0, 1], [1, 0], [1, 1]]
    assert ours.labels.values == ours.labels.names == ["b", "a"], "in the order in which they are named"
    rows = ('{"b": 0, "a": true}', '{"b": 1.0, "a": "0"}', '{"b": false, "a": 0.0}')
    assert surveyed(MultiLabel(), ("b", "a"), jsonl(*rows)) == [[0, 1], [1, 0], [0, 0]]
    assert surveyed(MultiLabel(), ("b", "a"), parquet(b=[True, False], a=[1, 0])) == [[1, 1], [0, 0]]
    assert ours.label_counts([[0, 1], [1, 1]]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2", "2"), ("-1", "-1"), ("0.5", "0.5"), ("null", "None"), ('""', "''"), ('"yes"', "'yes'"), ("[1]", "[1]"),
        ("NaN", "nan"),
    ],
)  # fmt: skip
def test_a_column_that_holds_more_than_0_and_1(surveyed, jsonl, value, shown):
    path = jsonl('{"a": 0, "b": 1}', f'{{"a": 1, "b": {value}}}')
    with pytest.raises(DataError) as caught:
        surveyed(MultiLabel(), ("a", "b"), path)
    assert str(caught.value) == f"{path}:2: {shown} is neither 0 nor 1 (column 'b')"


def test_an_empty_field_of_csv_is_neither(surveyed, csv):
    path = csv("text,a,b", "x,1,0", "x,,1")
    with pytest.raises(DataError) as caught:
        surveyed(MultiLabel(), ("a", "b"), path)
    assert str(caught.value) == f"{path}:3: '' is neither 0 nor 1 (column 'a')"


def test_lists_of_labels(surveyed, jsonl, parquet):
    ours = MultiLabel()
    rows = ('["sport", "art"]', "[]", '["art"]', '["zoo", "zoo"]')
    assert surveyed(ours, "y", jsonl(*rows)) == [[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert ours.labels.names == ["art", "sport", "zoo"]
    numbers = MultiLabel()
    assert surveyed(numbers, ("y",), parquet(y=[[10, 2], [], [2]])) == [[1, 1], [0, 0], [1, 0]]
    assert numbers.labels.values == [2, 10] and numbers.labels.names == ["2", "10"]


def test_a_label_that_only_validation_has(surveyed, jsonl):
    train, other = jsonl('["a"]', '["b"]'), jsonl('["a"]', '["b", "c"]', name="b.jsonl")
    with pytest.raises(DataError) as caught:
        surveyed(MultiLabel(), "y", train, other)
    assert str(caught.value) == f"{other}:2: label 'c' (column 'y') does not occur in the training data"


@pytest.mark.parametrize(
    "value", ['"a"', "null", "3", '{"text": "x"}', '{"y": {"a": 1}}', "[null]", "[0.5]", '[["a"]]']
)
def test_what_is_no_list_is_named_by_its_line_and_column(surveyed, jsonl, value):
    path = jsonl('["a"]', value)
    with pytest.raises(DataError) as caught:
        surveyed(MultiLabel(), "y", path)
    assert str(caught.value).startswith(f"{path}:2: ") and "is no list of labels (column 'y')" in str(caught.value)


def test_one_column_of_csv_holds_no_lists(surveyed, csv):
    path = csv("text,y", "x,a")
    with pytest.raises(DataError, match=r"a\.csv:2: 'a' is no list .* or several columns of 0 and 1"):
        surveyed(MultiLabel(), "y", path)


def test_labels_of_several_types_and_no_label_at_all(surveyed, jsonl):
    with pytest.raises(DataError, match="column 'y' holds labels of several types"):
        surveyed(MultiLabel(), "y", jsonl('["a", 1]'))
    with pytest.raises(DataError, match="column 'y': no row has a label"):
        surveyed(MultiLabel(), "y", jsonl("[]", "[]"))


@pytest.mark.parametrize("label", [None, (), ("a", "a"), ("a", "text"), "text"])
def test_columns_that_cannot_work(surveyed, jsonl, label):
    with pytest.raises(ConfigError, match=r"data\.label: name the columns of the labels"):
        surveyed(MultiLabel(), label, jsonl('["a"]'))


def test_labels_are_fp32_in_a_batch():
    ours = MultiLabel()
    ours.begin(None, type("T", (), {"pad_token_id": 0}), 8)
    labels = ours.collate([{"input_ids": [1], "labels": [0, 1]}, {"input_ids": [2, 3], "labels": [1, 1]}])["labels"]
    assert labels.dtype == torch.float32 and labels.tolist() == [[0, 1], [1, 1]]


def test_answers_are_the_labels_above_one_half_and_all_chances(labels):
    class Given(nn.Module):
        def forward(self, logits):
            return logits

    logits = torch.tensor([[2.0, -1.0, 0.5], [-1.0, -2.0, -3.0]])
    got = task(labels(3, 5, 8)).answers(Given(), {"logits": logits})
    assert got.predictions == [[3, 8], []], "in the terms of the data"
    chances = (1 / (1 + np.exp(-logits.double().numpy()))).tolist()
    for row, wanted in zip(got.scores, chances, strict=True):
        assert row == pytest.approx(dict(zip(("3", "5", "8"), wanted, strict=True)), rel=1e-6)

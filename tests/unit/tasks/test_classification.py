"""Classification: item losses, padding and metrics against torch and scikit-learn."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn import metrics

from isostep.data.labels import Labels
from isostep.errors import ConfigError
from isostep.tasks import Classification
from isostep.tasks.base import answers_of_its_own, at_least_fp32


def task(classes: int, pad: int = 7) -> Classification:
    made = Classification()
    made.begin(None, SimpleNamespace(pad_token_id=pad), 16)
    made.labels = Labels.of(list(range(classes)))
    return made


def test_collation_pads_on_the_right_and_masks_by_length_even_where_the_padding_token_is_a_real_one():
    rows = [
        {"input_ids": [5, 7], "token_type_ids": [0, 1], "labels": 2},
        {"input_ids": [1, 2, 3], "token_type_ids": [0, 0, 1], "labels": 0},
    ]
    batch = task(3).collate(rows)
    assert batch["inputs"]["input_ids"].tolist() == [[5, 7, 7], [1, 2, 3]]
    assert batch["inputs"]["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["inputs"]["token_type_ids"].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert batch["labels"].tolist() == [2, 0]
    assert "token_type_ids" not in task(3).collate([{"input_ids": [1], "labels": 0}])["inputs"]


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_are_those_of_scikit_learn(classes):
    draw = np.random.default_rng(0)
    predictions, targets = draw.integers(0, classes, 50), draw.integers(0, classes, 50)
    got = task(classes).metrics(predictions, targets)
    average = "binary" if classes == 2 else "macro"
    assert got == {
        "accuracy": metrics.accuracy_score(targets, predictions),
        "f1": metrics.f1_score(targets, predictions, average=average),
        "precision": metrics.precision_score(targets, predictions, average=average),
        "recall": metrics.recall_score(targets, predictions, average=average),
        "f1_macro": metrics.f1_score(targets, predictions, average="macro"),
        "precision_macro": metrics.precision_score(targets, predictions, average="macro"),
        "recall_macro": metrics.recall_score(targets, predictions, average="macro"),
        "mcc": metrics.matthews_corrcoef(targets, predictions),
    }


def test_metrics_of_a_set_with_one_class_are_finite_and_silent(recwarn):
    zeros = np.zeros(5, dtype=np.int64)
    got = task(2).metrics(zeros, zeros)
    assert got["accuracy"] == 1.0 and all(np.isfinite(value) for value in got.values())
    assert not recwarn.list


def test_item_losses_of_a_wrong_shape_are_named():
    class Mean(Classification):
        def item_losses(self, logits, labels):
            return super().item_losses(logits, labels).mean()

    wrong = Mean()
    with pytest.raises(ConfigError, match=r"Mean.item_losses gave shape \(\) for 2 items"):
        wrong.forward(
            lambda **_: SimpleNamespace(logits=torch.zeros(2, 3)), {"inputs": {}, "labels": torch.zeros(2).long()}
        )


def test_small_floats_become_fp32_and_others_stay():
    kinds = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    assert [at_least_fp32(torch.zeros(1, dtype=kind)).dtype for kind in kinds] == [
        torch.float32, torch.float32, torch.float32, torch.float64]  # fmt: skip


def test_what_of_a_foreign_task_the_commands_do_not_know():
    class Loss(Classification):
        def item_losses(self, logits, labels):
            return 2 * super().item_losses(logits, labels)

    class Wary(Loss):
        def decide(self, logits):
            return super().decide(logits)

    assert (answers_of_its_own(Classification()), answers_of_its_own(Loss())) == ([], [])
    assert answers_of_its_own(Wary()) == ["decide"]

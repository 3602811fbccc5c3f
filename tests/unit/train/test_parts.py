"""What a program hands in: sets and their names, rows of texts as sources, rows of tokens as they are."""

from __future__ import annotations

from types import SimpleNamespace

import datasets
import pytest
from torch import nn

from isostep.data.labels import Labels
from isostep.errors import ConfigError, DataError
from isostep.tasks import Classification, MultiLabel, Regression
from isostep.train.parts import Parts


def rows(labels, first=5, **more):
    return datasets.Dataset.from_dict(
        {"input_ids": [[first + at, 3] for at in range(len(labels))], "labels": labels, **more}
    )


def parts(task, train, validation=None, fraction=0.25):
    config = SimpleNamespace(data=SimpleNamespace(validation_fraction=fraction), run=SimpleNamespace(seed=7))
    task.begin(config, None, 16)
    return Parts(task, train=train, validation=validation)


def test_sets_are_named_as_they_are_said():
    train, own, other = rows([0, 1]), rows([1]), rows([0])
    assert parts(Classification(), train).sets() == {"train": train}
    assert parts(Classification(), train, own).sets() == {"train": train, "validation": own}
    several = parts(Classification(), train, {"own": own, "other": other}).sets()
    assert list(several) == ["train", "validation.own", "validation.other"] and several["validation.other"] is other


def test_the_metric_is_the_first_sets_unless_another_is_named():
    train, own = rows([0, 1]), rows([1])
    several = parts(Classification(), train, {"own": own, "other": own})
    assert several.metric("eval/f1") == "eval/own/f1" and several.metric("eval/other/f1") == "eval/other/f1"
    assert parts(Classification(), train, own).metric("eval/f1") == "eval/f1"


def test_what_cannot_be_handed_in():
    with pytest.raises(ConfigError, match=r"^fit: validation is handed in without train"):
        Parts(Classification(), validation=rows([0]))
    for wrong in ({}, {"train": rows([0])}, {"a/b": rows([0])}, {"": rows([0])}):
        with pytest.raises(ConfigError, match=r"^fit: validation sets are named by letters"):
            parts(Classification(), rows([0, 1]), wrong)


def test_a_model_is_a_module_or_what_makes_one_of_the_task():
    task, linear = Classification(), nn.Linear(2, 2).bfloat16().eval()
    assert Parts(task, model=linear).make_model(None) is linear
    assert linear.training and {str(weight.dtype) for weight in linear.parameters()} == {"torch.float32"}
    asked = []
    made = Parts(task, model=lambda given: asked.append(given) or nn.Linear(3, 3)).make_model(None)
    assert asked == [task] and made.in_features == 3
    with pytest.raises(ConfigError, match=r"^fit: the model is str, not a torch Module"):
        Parts(task, model=lambda given: "bert").make_model(None)


def test_rows_of_texts_are_sources_known_by_their_content():
    def texts():
        return datasets.Dataset.from_dict({"said": ["one", "two"], "kind": ["a", "b"]})

    found = parts(Classification(), texts(), {"own": texts()}).sources()
    assert list(found.splits()) == ["train", "validation.own"] and found.test is None
    (block,) = found.train.blocks(["said"])
    assert block.columns == {"said": ["one", "two"]} and block.place(1) == "train, row 2"
    with pytest.raises(DataError, match=r"^validation\.own: no column 'text'; its columns: said, kind"):
        next(iter(found.validation["own"].blocks(["text"])))
    again = parts(Classification(), texts(), texts()).sources()
    assert list(again.validation) == [""] and again.train.fingerprint() == found.train.fingerprint()


def test_rows_of_tokens_stay_as_they_are_but_for_a_selection_and_a_format():
    task = Classification()
    train = rows([0, 1, 2, 1], extra=[9, 8, 7, 6])
    got = parts(task, train.select([3, 0, 2]).with_format("numpy"), train).tokenised()
    assert list(got.train) == [{"input_ids": [5 + at, 3], "labels": label, "extra": extra}
                               for at, label, extra in ((3, 1, 6), (0, 0, 9), (2, 2, 7))]  # fmt: skip
    assert type(got.train[0]["input_ids"]) is list and got.train._indices is None
    assert list(got.validation) == ["eval"] and list(got.validation["eval"]) == list(train)
    assert got.labels == task.labels == Labels.of([0, 1, 2]) and got.test is None


def test_several_sets_of_tokens_stand_under_their_names():
    sets = {"own": rows([1]), "far-1": rows([0, 0])}
    got = parts(Classification(), rows([0, 1]), sets).tokenised()
    assert {name: len(part) for name, part in got.validation.items()} == {"eval/own": 1, "eval/far-1": 2}


def test_without_validation_a_part_is_split_off():
    classes = parts(Classification(), rows([0, 0, 0, 1] * 10)).tokenised()
    assert (len(classes.train), len(classes.validation["eval"])) == (30, 10)
    assert list(classes.validation["eval"]["labels"]).count(1) in (2, 3), "a quarter of the ten"
    numbers = parts(Regression(), rows([float(n) for n in range(40)])).tokenised()
    assert (len(numbers.train), len(numbers.validation["eval"]), numbers.labels) == (30, 10, None)
    assert sorted([*numbers.train["labels"], *numbers.validation["eval"]["labels"]]) == list(range(40))
    marks = parts(MultiLabel(), rows([[0, 1, 1], [1, 0, 0]] * 20)).tokenised()
    assert (len(marks.train), marks.labels) == (30, Labels.of([0, 1, 2]))


def test_named_classes_keep_their_names():
    train = rows([0, 2]).cast_column("labels", datasets.ClassLabel(names=["bad", "fair", "good"]))
    got = parts(Classification(), train, train).tokenised()
    assert got.labels == Labels([0, 1, 2], ["bad", "fair", "good"]), "also one that no row has"


@pytest.mark.parametrize("column", ["input_ids", "labels"])
@pytest.mark.parametrize("where", ["train", "validation.own"])
def test_a_missing_column_is_named_with_its_set(column, where):
    whole, lacking = rows([0, 1]), rows([0, 1]).remove_columns(column)
    sets = (lacking, {"own": whole}) if where == "train" else (whole, {"own": lacking})
    with pytest.raises(DataError, match=rf"^{where}: it has no column '{column}', which tokenised rows need"):
        parts(Classification(), *sets).tokenised()


@pytest.mark.parametrize("labels", [["a", "b"], [0.5, 1.0], [-1, 1], [None, 1], [[0], [1]]])
def test_labels_that_are_no_classes(labels):
    with pytest.raises(
        DataError, match=r"^train: the column 'labels' of tokenised rows must hold the classes' numbers"
    ):
        parts(Classification(), rows(labels), rows([0, 1])).tokenised()


@pytest.mark.parametrize("odd", [[1], [0, 2], [0, 1, 1]])
@pytest.mark.parametrize("where", ["train", "validation"])
def test_lists_of_0_and_1_are_of_one_length(where, odd):
    good, bad = rows([[0, 1], [1, 1]]), rows([[0, 1], odd])
    with pytest.raises(DataError, match=rf"^{where}, row 2: 'labels' of tokenised rows must be lists of one length"):
        parts(MultiLabel(), *((bad, good) if where == "train" else (good, bad))).tokenised()


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), None, "1"])
def test_numbers_are_finite(odd):
    labels = [str(0.5), odd] if isinstance(odd, str) else [0.5, odd]
    with pytest.raises(DataError, match=r"^train, row [12]: .* in 'labels' is no finite number$"):
        parts(Regression(), rows(labels), rows([0.5])).tokenised()


def test_classes_that_training_does_not_have_or_only_one():
    with pytest.raises(DataError, match=r"^validation, row 2: label 2 is none of the 2 classes"):
        parts(Classification(), rows([0, 1]), rows([0, 2])).tokenised()
    with pytest.raises(DataError, match=r"^train: every label of the tokenised rows is 0"):
        parts(Classification(), rows([0, 0]), rows([0])).tokenised()


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([[1], []], "train, row 2: 'input_ids' is empty"),
        ([[1], None], "train, row 2: 'input_ids' is empty"),
        ([[1.5], [2.0]], "train: the column 'input_ids' must hold lists of token numbers"),
        ([1, 2], "train: the column 'input_ids' must hold lists of token numbers"),
        ([[1], [1] * 17], "train, row 2: 17 tokens, and the model takes 16"),
    ],
)
def test_tokens_that_are_none(ids, told):
    made = datasets.Dataset.from_dict({"input_ids": ids, "labels": [0, 1]})
    with pytest.raises(DataError, match=f"^{told}"):
        parts(Classification(), made, rows([0, 1])).tokenised()


@pytest.mark.parametrize("name", ["train", "validation"])
@pytest.mark.parametrize("task", [Classification, Regression])
def test_a_set_without_rows(name, task):
    some, none = rows([0, 1]), rows([0, 1]).select([])
    sets = (none, some) if name == "train" else (some, none)
    with pytest.raises(DataError, match=f"^{name} is empty: it holds no rows$"):
        parts(task(), *sets).tokenised()

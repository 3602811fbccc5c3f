"""Tokenised data against the tokenizer called row by row, and the cache that spares it."""

from __future__ import annotations

import json
import logging
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from isostep.data import files, sources, token_cache, tokens
from isostep.errors import ConfigError, DataError
from isostep.tasks import Classification, Encoded, MultiLabel, Regression, Task

Make = Callable[..., Any]
TEXTS = ["the cat sat", "a dog ran far away and then some more", "", "on the mat", "the dog", "null"] * 5
LABELS = ["no", "yes"] * 15


def write(path: Path, texts: list[str] = TEXTS, labels: list[Any] = LABELS, second: list[str] | None = None) -> Path:
    columns = {"text": texts, **({"other": second} if second else {}), "label": labels}
    with open(path, "w", encoding="utf-8") as file:
        for row in zip(*columns.values(), strict=True):
            print(json.dumps(dict(zip(columns, row, strict=True))), file=file)
    return path


def begun(task: Task, config: Any, tokenizer: Any, max_length: int = 6) -> Task:
    task.begin(config, tokenizer, max_length)
    return task


def load(config: Any, tokenizer: Any, max_length: int = 6) -> tokens.TokenizedData:
    task = begun(Classification(), config, tokenizer, max_length)
    made = tokens.load(config, sources.resolve(config), task)
    assert made.labels == task.labels
    return made


def validation(made: tokens.TokenizedData) -> datasets.Dataset:
    """The only validation set."""
    assert list(made.validation) == ["eval"]
    return made.validation["eval"]


def first(batch: Any) -> dict[str, list[int]]:
    return {name: values[0] for name, values in batch.items()}


class Forbidden:
    """A tokenizer that must not be used."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("tokenised again")


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("typed", [False, True])
def test_as_row_by_row(
    tmp_path: Path, config: Make, tokenizer: Any, pair: bool, typed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 7)
    second = [f"{text} mat" for text in reversed(TEXTS)]
    path = write(tmp_path / "a.jsonl", second=second)
    if not typed:
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    made = config(train=path, validation=path, text=("other", "text") if pair else ("text",))
    got = load(made, tokenizer, 8)
    # lists of one: called with two strings of which the second is empty, a tokenizer leaves the separator out
    inputs = [([a], [b]) for a, b in zip(second, TEXTS, strict=True)] if pair else [([text],) for text in TEXTS]
    keys = {"return_token_type_ids": typed}
    whole = [first(tokenizer(*texts, **keys)) for texts in inputs]
    cut = [first(tokenizer(*texts, truncation=True, max_length=8, **keys)) for texts in inputs]
    names = ["input_ids", "token_type_ids"] if typed else ["input_ids"]
    assert set(got.train.column_names) == {*names, "labels"}
    for name in names:
        assert list(got.train[name]) == list(validation(got)[name]) == [row[name] for row in cut]
    assert list(got.train["labels"]) == [got.labels.values.index(label) for label in LABELS]
    assert got.summary["rows"] == {"train": 30, "eval": 30}
    assert got.summary["files"]["train"] == {
        "rows": 30,
        "tokens": sum(len(row["input_ids"]) for row in cut),
        "truncated": sum(len(row["input_ids"]) > 8 for row in whole),
        "empty": 5,
        "label_counts": {"no": 15, "yes": 15},
    }
    assert 0 < got.summary["files"]["train"]["truncated"] < 30


def test_lengths_without_the_tokens(tmp_path: Path, config: Make, tokenizer: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 7)
    train = load(config(train=write(tmp_path / "a.jsonl")), tokenizer, 12).train
    for rows in (
        train,
        train.select([5, 0, 3, 3]),
        train.select(range(4, 20)),
        train.select(range(3, 20)).select([4, 1]),
    ):
        found = tokens.lengths(rows)
        assert found.dtype == np.int32 and found.tolist() == [len(ids) for ids in rows["input_ids"]]
    assert tokens.lengths(train.select([])).tolist() == []


def test_validation_is_split_off(tmp_path: Path, config: Make, tokenizer: Any, caplog: Any) -> None:
    path = write(tmp_path / "a.jsonl", labels=["no", "no", "yes"] * 10)
    with caplog.at_level(logging.INFO, "isostep"):
        got = load(config(train=path, validation_fraction=0.2), tokenizer)
    assert (len(got.train), len(validation(got))) == (24, 6)
    assert list(validation(got)["labels"]).count(1) == 2
    whole = load(config(train=path, validation=path), tokenizer).train
    assert sorted(map(str, [*got.train, *validation(got)])) == sorted(map(str, whole))
    assert "6 of the 30 training rows are split off" in caplog.text
    assert list(validation(load(config(train=path, validation_fraction=0.2), tokenizer))) == list(validation(got))


def test_second_start_does_no_work(tmp_path: Path, config: Make, tokenizer: Any, monkeypatch: Any) -> None:
    made = config(train=write(tmp_path / "a.jsonl"), test=write(tmp_path / "b.jsonl"))
    first = load(made, tokenizer)
    monkeypatch.setattr("isostep.data.labels.find", Forbidden(tokenizer))
    second = load(made, Forbidden(tokenizer))
    assert second.summary == {**first.summary, "reused": True} and not first.summary["reused"]
    assert second.labels == first.labels
    for name in ("train", "test"):
        assert list(getattr(second, name)) == list(getattr(first, name))
    assert list(validation(second)) == list(validation(first))


def test_what_the_fingerprint_follows(tmp_path: Path, config: Make, tokenizer: Any) -> None:
    path, copy = write(tmp_path / "a.jsonl", second=TEXTS[::-1]), write(tmp_path / "c.jsonl", second=TEXTS[::-1])
    longer = write(tmp_path / "b.jsonl", second=[*TEXTS[1:], "dog"])

    def key(tokenizer: Any = tokenizer, max_length: int = 6, **data: Any) -> str:
        made = config(**{"train": path, **data})
        return tokens.fingerprint(made, sources.resolve(made), begun(Classification(), made, tokenizer, max_length))

    base = key()
    tokenizer(["a dog ran far away"], truncation=True, max_length=2, padding="max_length")
    assert key() == base == key(train=copy) == key(validation_fraction=0.5)  # neither its use nor a name changes it
    other = json.loads(tokenizer.backend_tokenizer.to_str())
    other["model"]["vocab"] |= {"cat": other["model"]["vocab"]["dog"], "dog": other["model"]["vocab"]["cat"]}
    swapped = PreTrainedTokenizerFast(tokenizer_object=type(tokenizer.backend_tokenizer).from_str(json.dumps(other)))
    swapped.model_input_names = tokenizer.model_input_names
    keys = [
        base,
        key(swapped),
        key(max_length=7),
        key(max_train_examples=3),
        key(text=("other",)),
        key(text=("other", "text")),
        key(text=("text", "other")),
        key(label="other"),
        key(train=longer),
        key(validation=path),
        key(test=path),
        key(validation=longer),
    ]
    tokenizer.truncation_side = "left"
    keys.append(key())
    tokenizer.model_input_names = ["input_ids"]
    keys.append(key())
    assert len(set(keys)) == len(keys)


def test_the_fingerprint_follows_the_plain_values_of_a_foreign_task(config: Make, tokenizer: Any) -> None:
    class Prefixed(Classification):
        mark = "a"

        def __init__(self, *stop: str) -> None:
            self.stop = set(stop)

    def of(task: Classification, **values: Any) -> list[str]:
        for name, value in values.items():
            setattr(task, name, value)
        return begun(task, config(), tokenizer).fingerprint()

    made = [of(Prefixed()), of(Prefixed(), mark="b"), of(Prefixed("x", "y"))]
    assert len({tuple(found) for found in made}) == 3
    assert of(Prefixed("y", "x")) == made[2] and of(Classification()) == of(Classification(), mark="b")


def test_the_fingerprint_follows_the_methods_that_a_task_replaces(tmp_path: Path, config: Make, tokenizer: Any) -> None:
    path = write(tmp_path / "a.jsonl")
    made = config(train=path, validation=path)

    class Other(Classification):
        def targets(self, block: Any, encoded: Any) -> list[int]:
            return [1 - index for index in super().targets(block, encoded)]

    class Shouting(Classification):
        def encode(self, block: Any) -> Encoded:
            return super().encode(block)._replace(truncated=0)

    class Weighted(Classification):
        def item_losses(self, logits: Any, labels: Any) -> Any:
            return 2 * super().item_losses(logits, labels)

    def key(task: Task) -> str:
        return tokens.fingerprint(made, sources.resolve(made), begun(task, made, tokenizer))

    base = key(Classification())
    assert key(Weighted()) == base, "a loss is none of the tokens' business"
    assert len({base, key(Other()), key(Shouting()), key(Regression()), key(MultiLabel())}) == 5
    task = begun(Other(), made, tokenizer)
    swapped = tokens.load(made, sources.resolve(made), task)
    plain = load(made, tokenizer)
    assert list(swapped.train["labels"]) == [1 - label for label in plain.train["labels"]], "not from the other's cache"


def test_several_validation_sets_stand_under_their_names(tmp_path: Path, config: Make, tokenizer: Any) -> None:
    train, test = write(tmp_path / "a.jsonl"), write(tmp_path / "t.jsonl", TEXTS[:4], LABELS[:4])
    own, other = write(tmp_path / "b.jsonl", TEXTS[:7], LABELS[:7]), write(tmp_path / "c.jsonl", ["a"], ["yes"])
    made = load(config(train=train, validation={"own": str(own), "other": str(other)}, test=test), tokenizer)
    assert list(made.validation) == ["eval/own", "eval/other"]
    assert list(made.validation["eval/own"]) == list(made.train)[:7] and len(made.train) == 30
    assert list(made.validation["eval/other"]["labels"]) == [1] and list(made.test) == list(made.train)[:4]
    assert made.summary["rows"] == {"train": 30, "eval/own": 7, "eval/other": 1}
    assert list(made.summary["files"]) == ["train", "validation.own", "validation.other", "test"]
    cached = {path.name for path in Path(made.summary["cache"]).glob("*.arrow")}
    assert cached == {"train.arrow", "validation.own.arrow", "validation.other.arrow", "test.arrow"}
    again = load(config(train=train, validation={"other": str(other), "own": str(own)}, test=test), tokenizer)
    assert list(again.validation) == ["eval/other", "eval/own"] and len(again.validation["eval/own"]) == 7
    (tmp_path / "c.jsonl").write_text('{"text": "a", "label": "maybe"}')
    with pytest.raises(DataError, match=r"c\.jsonl:1: label 'maybe'"):
        load(config(train=train, validation={"own": str(own), "other": str(other)}), tokenizer)


def test_numbers_are_split_off_without_strata(tmp_path: Path, config: Make, tokenizer: Any, caplog: Any) -> None:
    numbers = [float(n) for n in range(30)]
    made = config(train=write(tmp_path / "a.jsonl", labels=numbers), validation_fraction=0.2)
    with caplog.at_level(logging.INFO, "isostep"):
        got = tokens.load(made, sources.resolve(made), begun(Regression(), made, tokenizer))
    assert got.labels is None and got.summary["files"]["train"]["label_counts"] == {}
    assert (len(got.train), len(validation(got))) == (24, 6)
    assert sorted([*got.train["labels"], *validation(got)["labels"]]) == numbers
    assert "6 of the 30 training rows are split off (data.validation_fraction 0.2, seed 7)" in caplog.text
    listed = config(train=write(tmp_path / "b.jsonl", labels=[["a"], ["b", "a"], []] * 10), validation_fraction=0.2)
    several = tokens.load(listed, sources.resolve(listed), begun(MultiLabel(), listed, tokenizer))
    assert (len(several.train), len(validation(several))) == (24, 6)
    assert several.summary["files"]["train"]["label_counts"] == {"a": 20, "b": 10}


@pytest.mark.parametrize("damage", ["cut", "meta", "no meta", "gone"])
def test_a_damaged_cache_is_made_anew(
    tmp_path: Path, config: Make, tokenizer: Any, cache: Path, damage: str, caplog: Any
) -> None:
    made = config(train=write(tmp_path / "a.jsonl"))
    first = load(made, tokenizer)
    rows = list(first.train)
    folder = Path(first.summary["cache"])
    assert folder.parent == cache / "tokens"
    del first
    if damage == "cut":
        content = (folder / "train.arrow").read_bytes()
        (folder / "train.arrow").write_bytes(content[: len(content) // 2])
    elif damage == "meta":
        (folder / "meta.json").write_text('{"labels": ')
    elif damage == "no meta":
        (folder / "meta.json").unlink()
    else:
        shutil.rmtree(folder)
    again = load(made, tokenizer)
    assert list(again.train) == rows and not again.summary["reused"]
    assert ("is damaged" in caplog.text) == (damage != "gone")
    assert load(made, tokenizer).summary["reused"]
    assert [p.name for p in folder.parent.iterdir() if not p.name.endswith(".lock")] == [folder.name]


def test_nothing_is_left_of_an_error(tmp_path: Path, config: Make, tokenizer: Any, cache: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, texts=[*TEXTS[:-1], None])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"a\.jsonl:30: missing text \(column 'text'\)"):
        load(config(train=path), tokenizer)
    assert not [found for found in (cache / "tokens").iterdir() if not found.name.endswith(".lock")]


def _racer(started: Any, made: Any, results: Any) -> None:
    def slow(folder: Path) -> dict[str, Any]:
        results.put("wrote")
        started.wait(0.3)
        (folder / "train.arrow").write_bytes(b"x")
        return {}

    results.put(token_cache.obtain("key", slow)[2])


def test_two_processes_write_once(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    results, never = context.Queue(), context.Event()
    racers = [context.Process(target=_racer, args=(never, None, results)) for _ in range(3)]
    for racer in racers:
        racer.start()
    got = [results.get(timeout=20) for _ in range(4)]
    for racer in racers:
        racer.join()
    assert sorted(map(str, got)) == ["False", "True", "True", "wrote"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, config: Make, tokenizer: Any, monkeypatch: Any) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ISOSTEP_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set ISOSTEP_CACHE"):
        load(config(train=write(tmp_path / "a.jsonl")), tokenizer)


def test_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOSTEP_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert token_cache.cache_root() == Path("/a")
    monkeypatch.delenv("ISOSTEP_CACHE")
    assert token_cache.cache_root() == Path("/b/isostep")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert token_cache.cache_root() == Path.home() / ".cache/isostep"


@pytest.mark.parametrize("limit", [3, 7, 10, 14, 1000])
def test_first_rows_only(tmp_path: Path, config: Make, tokenizer: Any, limit: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 7)
    path = write(tmp_path / "a.jsonl", labels=["b", "c"] * 14 + ["c", "a"])
    got = load(config(train=path, validation=path, max_train_examples=limit), tokenizer)
    assert list(got.train) == list(validation(got))[:limit] and len(validation(got)) == 30
    assert got.labels.values == ["a", "b", "c"]  # of the whole file
    found = sources.resolve(config(train=path))
    assert list(tokens.training_texts(found, ["text"], limit, Classification())) == TEXTS[:limit]
    assert list(tokens.training_texts(found, ["text"], None, Classification())) == TEXTS


def test_empty_texts_are_kept_and_said_once(tmp_path: Path, config: Make, tokenizer: Any, caplog: Any) -> None:
    path = write(tmp_path / "a.jsonl")
    got = load(config(train=path, validation=write(tmp_path / "b.jsonl", ["a", "b"], ["no", "yes"])), tokenizer)
    assert len(got.train) == 30 and list(got.train["input_ids"])[2] == [2, 3]
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["train: 5 rows with an empty text; they are kept"]


def test_a_row_without_any_token_gets_one(tokenizer: Any) -> None:
    tokenizer.backend_tokenizer.post_processor = None  # it adds nothing, as GPT-2's
    rows, cut = tokens.encode(tokenizer, [["", "the cat"]], 5)
    assert rows["input_ids"] == [[tokenizer.sep_token_id], tokenizer.convert_tokens_to_ids(["the", "cat"])]
    assert rows["token_type_ids"] == [[0], [0, 0]] and cut == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": null, "label": 1}', "a.jsonl:3: missing text (column 'text')"),
        ('{"label": 1}', "a.jsonl:3: missing text (column 'text')"),
        ('{"text": 5, "label": 1}', "a.jsonl:3: column 'text' holds int, not a text"),
        ('{"text": "\\ud83d", "label": 1}', "a.jsonl:3: column 'text' holds half a surrogate pair"),
        ('{"text": "x", "label": null}', "a.jsonl:3: the label is missing (column 'label')"),
        ('{"text": "x"', "a.jsonl:3: broken JSON"),
    ],
)
def test_faulty_rows(tmp_path: Path, config: Make, tokenizer: Any, content: str, said: str) -> None:
    good = ['{"text": "\\ud83d\\ude00", "label": 1}', '{"text": "x", "label": 0}']
    (tmp_path / "a.jsonl").write_text("\n".join([*good, content]))
    with pytest.raises(DataError) as caught:
        load(config(train=tmp_path / "a.jsonl"), tokenizer)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(said)


def test_a_label_that_only_validation_has(tmp_path: Path, config: Make, tokenizer: Any) -> None:
    made = config(
        train=write(tmp_path / "a.jsonl"), validation=write(tmp_path / "b.jsonl", ["x", "y"], ["no", "maybe"])
    )
    with pytest.raises(DataError, match=r"b\.jsonl:2: label 'maybe' \(column 'label'\) does not occur in the training"):
        load(made, tokenizer)


def test_lengths_that_cannot_work(tmp_path: Path, config: Make, tokenizer: Any) -> None:
    path = write(tmp_path / "a.jsonl", second=TEXTS)
    for text, least in ((("text",), 3), (("text", "other"), 5)):
        assert max(tokens.lengths(load(config(train=path, text=text), tokenizer, least).train)) == least
        with pytest.raises(ConfigError, match=f"make it {least} or more"):
            load(config(train=path, text=text), tokenizer, least - 1)


def test_a_very_long_text(tmp_path: Path, config: Make, tokenizer: Any) -> None:
    path = write(tmp_path / "a.jsonl", ["the cat " * 5000, "a dog"], ["no", "yes"])
    got = load(config(train=path, validation=path), tokenizer, 256)
    assert tokens.lengths(got.train).tolist() == [256, 4]


def test_memory_mapped(tmp_path: Path, config: Make, tokenizer: Any) -> None:
    path = write(tmp_path / "a.jsonl")
    train = load(config(train=path, validation=path), tokenizer).train
    assert isinstance(train, datasets.Dataset)
    assert [Path(found["filename"]).name for found in train.cache_files] == ["train.arrow"]


MEASURE = """
import resource, sys
from types import SimpleNamespace
from isostep.data import sources, tokens
from isostep.tasks import Classification
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
def peak(path):
    data = SimpleNamespace(path=None, train=path, validation=sys.argv[2], test=None, text=("text",), label="label")
    data.max_train_examples = None
    kind = SimpleNamespace(kind="classification", multi_label=False)
    config, task = SimpleNamespace(data=data, run=SimpleNamespace(seed=1), task=kind), Classification()
    task.begin(config, tokenizer, 64)
    made = tokens.load(config, sources.resolve(config), task)
    tokens.lengths(made.train)
    return len(made.train), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
small, big = peak(sys.argv[2]), peak(sys.argv[3])
print(big[0] / small[0], (big[1] - small[1]) / 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, tokenizer: Any) -> None:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for name, count in (("small", 4000), ("big", 48_000)):
        lines = [f"{'the cat sat on a mat ' * 10},{i % 2}\n" for i in range(count)]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(lines))
    arguments = [str(tmp_path / name) for name in ("tokenizer", "small.csv", "big.csv")]
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True)
    times, grown = map(float, done.stdout.split())
    assert times == 12
    assert grown < 10  # MiB; the Arrow file has 15, its tokens as Python lists 45


def test_progress_is_told(tmp_path: Path, config: Make, tokenizer: Any, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 10)
    monkeypatch.setattr(tokens, "_PROGRESS_SECONDS", 0.0)
    path = write(tmp_path / "a.jsonl")
    with caplog.at_level(logging.INFO, "isostep"):
        load(config(train=path), tokenizer)
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("tokenising train: ")]
    assert [line.split(", ")[0] for line in told] == [f"tokenising train: {rows} rows" for rows in (10, 20, 30)]

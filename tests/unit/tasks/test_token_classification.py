"""Token classification: words and tokens aligned as by a plain loop, weights, faults, and entities as in conlleval."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn import metrics
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn import functional
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast

from isostep.config import Config
from isostep.data import tokens
from isostep.data.files import Block
from isostep.data.labels import Labels
from isostep.data.sources import Sources
from isostep.data.splits import DatasetSplit, FileSplit
from isostep.errors import ConfigError, DataError
from isostep.tasks import Classification, TokenClassification
from isostep.tasks.entities import entities, mark_entities

PIECES = ["an", "##na", "##ton", "is", "in", "ro", "##me", "now", "b"]
WORDS = ["anna", "anton", "is", "in", "rome", "now", "b", "\x00"]  # the last one gives no token
TAGS = ["B-LOC", "B-PER", "I-PER", "O"]


def bert(length: int = 64, side: str = "right") -> Any:
    vocabulary = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *PIECES])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        truncation_side=side, model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def bytes_alone() -> Any:
    """Byte-level pairs without a merge and without special tokens: "Ġ" stands for a space."""
    vocabulary = {piece: i for i, piece in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", pad_token="<end>")


def settings(**data: Any) -> Config:
    more = [part for key, value in data.items() for part in (f"--data.{key}", str(value))]
    base = ["--run.name", "x", "--model.path", "builtin:tiny", "--data.text", "words", "--data.label", "tags"]
    return Config.load(overrides=[*base, *(more or ["--data.train", "x.jsonl"])], handed_in=("task",))


def task(names: list[str], tokenizer: Any = None, length: int = 64) -> TokenClassification:
    made = TokenClassification()
    made.begin(settings(), tokenizer or bert(), length)
    made.labels = Labels.of(list(names))
    return made


def block(words: Any, tags: Any = None) -> Block:
    columns = {"words": words} | ({} if tags is None else {"tags": tags})
    return Block(columns, "a.jsonl", range(1, len(words) + 1))


def drawn(n: int) -> tuple[list[list[str]], list[list[str]]]:
    draw = np.random.default_rng(0)
    words = [draw.choice(WORDS, draw.integers(1, 12)).tolist() for _ in range(n)]
    return words, [draw.choice(TAGS, len(row)).tolist() for row in words]


def by_hand(tokenizer: Any, words: list[str], tags: list[str], length: int) -> tuple[list[int], list[int]]:
    """Ids and labels word by word, cut on the right."""
    ids, labels = [], []
    for word, tag in zip(words, tags, strict=True):
        pieces = tokenizer(word, add_special_tokens=False)["input_ids"]
        ids += pieces
        labels += [TAGS.index(tag), *[-100] * len(pieces)][: len(pieces)]
    return [2, *ids[: length - 2], 3], [-100, *labels[: length - 2], -100]


@pytest.mark.parametrize("length", [3, 6, 64])
def test_the_first_token_of_a_word_carries_its_tag_and_nothing_else_does(length):
    words, tags = drawn(60)
    made = task(TAGS, length=length)
    encoded = made.encode(block(words))
    targets = made.targets(block(words, tags), encoded)
    cut = 0
    for row in range(60):
        ids, labels = by_hand(made.tokenizer, words[row], tags[row], length)
        assert encoded.columns["input_ids"][row] == ids
        assert targets[row].tolist() == labels
        cut += len(by_hand(made.tokenizer, words[row], tags[row], 64)[0]) > length
        for at, tag in zip(encoded.words[row], tags[row], strict=True):
            assert at is None or labels[at] == TAGS.index(tag)
    assert encoded.truncated == cut
    assert made.label_counts(targets).tolist() == [sum(int((row == c).sum()) for row in targets) for c in range(4)]


def test_cut_on_the_left_a_word_without_its_beginning_has_no_label():
    made = task(TAGS, bert(side="left"), length=5)  # of an ##na | an ##ton | is the last three stay
    encoded = made.encode(block([["anna", "anton", "is"], ["rome", "anton", "is"]]))
    assert made.tokenizer.convert_ids_to_tokens(encoded.columns["input_ids"][0]) == [
        "[CLS]", "an", "##ton", "is", "[SEP]"]  # fmt: skip
    assert encoded.words[0] == [None, 1, 3]
    made = task(TAGS, bert(side="left"), length=4)
    assert made.encode(block([["anna", "anton", "is"]])).words == [[None, None, 2]]


def test_rows_without_any_token_become_one_token_and_count_for_nothing():
    made = task(TAGS, bytes_alone())
    encoded = made.encode(block([["", ""], ["a"]]))
    assert encoded.columns["input_ids"][0] == [made.tokenizer.eos_token_id] and encoded.words[0] == [None, None]
    assert encoded.empty == 1
    assert made.targets(block([["", ""], ["a"]], [["O", "O"], ["O"]]), encoded)[0].tolist() == [-100]


def gpt2() -> Any:
    """Of a class that makes its pre-tokenizer anew from its settings when it is loaded."""
    vocabulary = {piece: i for i, piece in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"])}
    return GPT2Tokenizer(vocab=vocabulary, merges=[], unk_token="<end>", bos_token="<end>", eos_token="<end>",
                         pad_token="<end>")  # fmt: skip


@pytest.mark.parametrize("tokenizer", [bytes_alone, gpt2])
def test_byte_level_tokenizers_find_a_space_before_each_word_and_still_do_when_loaded_again(tmp_path, tokenizer):
    made = task(TAGS, tokenizer())
    row = made.encode(block([["ab", "c"]]))
    assert made.tokenizer.convert_ids_to_tokens(row.columns["input_ids"][0]) == ["Ġ", "a", "b", "Ġ", "c"]
    assert row.words == [[0, 3]]
    made.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(["ab", "c"], is_split_into_words=True)["input_ids"] == row.columns["input_ids"][0]


def stored(labels: list[list[int]]) -> datasets.Dataset:
    made = pa.table({"input_ids": [[1] * len(row) for row in labels], "labels": pa.array(labels, pa.list_(pa.int16()))})
    return datasets.Dataset(made)


def test_a_row_counts_for_its_labelled_tokens_selected_and_in_several_chunks():
    draw = np.random.default_rng(1)
    labels = [draw.choice([-100, 0, 1, 2, 3], draw.integers(1, 9)).tolist() for _ in range(40)]
    labels[7] = [-100, -100]
    wanted = [sum(label != -100 for label in row) for row in labels]
    made = task(TAGS)
    whole = stored(labels)
    assert made.items(whole).tolist() == wanted and made.items(whole).dtype == np.int32
    pieces = datasets.concatenate_datasets([stored(labels[:11]), stored(labels[11:])])
    assert made.items(pieces).tolist() == wanted
    assert made.items(pieces.select(range(9, 30))).tolist() == wanted[9:30]
    order = [30, 3, 7, 39, 12]
    assert made.items(pieces.select(order)).tolist() == [wanted[i] for i in order]


def test_rows_that_come_as_tokens_are_checked():
    made = task(TAGS)
    assert made.survey_tokenised(stored([[-100, 2], [0]])).values == [0, 1, 2]
    with pytest.raises(DataError, match="numbers from 0, and -100"):
        made.survey_tokenised(stored([[-100, 0]]))
    with pytest.raises(DataError, match="label 4 in 'labels' is none of the 4 classes"):
        made.items(stored([[-100, 4]]))
    odd = datasets.Dataset(pa.table({"input_ids": [[1, 2], [3]], "labels": [[0], [1, 2]]}))
    with pytest.raises(DataError, match="as long as those in 'input_ids'"):
        made.items(odd)


def test_losses_are_those_of_torch_row_by_row_and_say_whose_they_are():
    made = task(TAGS)
    draw = np.random.default_rng(2)
    rows = []
    for size in (3, 7, 1, 5):
        labels = draw.choice([-100, 0, 1, 2, 3], size).tolist()
        rows.append({"input_ids": list(range(4, 4 + size)), "token_type_ids": [0] * size, "labels": labels})
    rows[2]["labels"] = [-100]
    table = torch.from_numpy(draw.normal(size=(20, 4)))
    outcome = made.forward(lambda input_ids, **_: SimpleNamespace(logits=table[input_ids]), made.collate(rows))
    losses, owners, best = [], [], []
    for number, row in enumerate(rows):
        for token, label in zip(row["input_ids"], row["labels"], strict=True):
            if label != -100:
                losses.append(functional.cross_entropy(table[token], torch.tensor(label)))
                owners.append(number)
                best.append(int(table[token].argmax()))
    torch.testing.assert_close(outcome.losses, torch.stack(losses))
    assert outcome.rows.tolist() == owners and outcome.predictions.tolist() == best
    assert outcome.targets.tolist() == [label for row in rows for label in row["labels"] if label != -100]


def test_the_answer_is_a_tag_a_word_and_none_where_it_was_cut_off():
    made = task(TAGS, length=5)
    encoded = made.encode(block([["anna", "is", "now"], ["\x00", "b"]]))
    rows = [{key: values[i] for key, values in encoded.columns.items()} for i in range(2)]
    draw = torch.Generator().manual_seed(0)
    table = torch.randn(20, 4, generator=draw)
    model: Any = lambda input_ids, **_: SimpleNamespace(logits=table[input_ids])  # noqa: E731
    got = made.answers(model, made.inputs(rows), encoded.words)
    ids = {word: made.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("anna", "is", "b")}
    tags = {word: TAGS[int(table[i].argmax())] for word, i in ids.items()}
    assert got.predictions == [[tags["anna"], tags["is"], None], [None, tags["b"]]]
    chance = {word: float(table[i].softmax(-1).max()) for word, i in ids.items()}
    assert got.scores[0] == pytest.approx([chance["anna"], chance["is"], None])
    assert got.scores[1] == [None, pytest.approx(chance["b"])]


# ---- tags and words of all kinds of files


def split(tmp_path: Any, rows: list[dict[str, Any]], name: str = "a.jsonl") -> FileSplit:
    path = tmp_path / name
    if name.endswith("jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return FileSplit([path])


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_classes_are_numbers_by_value_or_texts_by_code_point(tmp_path, name):
    rows = [{"words": ["b", "b"], "tags": ["O", "B-PER"]}, {"words": ["is"], "tags": ["B-LOC"]}]
    assert task([]).survey(split(tmp_path, rows, name)).values == ["B-LOC", "B-PER", "O"]
    rows = [{"words": ["b", "b"], "tags": [10, 2]}]
    assert task([]).survey(split(tmp_path, rows, name)).values == [2, 10]


def test_classes_that_a_dataset_names_keep_its_order():
    kinds = datasets.Features(
        {"words": datasets.List(datasets.Value("string")), "tags": datasets.List(datasets.ClassLabel(names=TAGS[::-1]))}
    )
    rows = datasets.Dataset.from_dict({"words": [["b", "is"]], "tags": [["B-PER", "O"]]}, features=kinds)
    made = task([])
    made.labels = made.survey(DatasetSplit(rows, "own"))
    assert made.labels == Labels([0, 1, 2, 3], ["O", "I-PER", "B-PER", "B-LOC"])
    found = next(iter(DatasetSplit(rows, "own").blocks()))
    assert made.targets(found, made.encode(found))[0].tolist() == [-100, 2, 0, -100]
    assert made.head()["id2label"] == {0: "O", 1: "I-PER", 2: "B-PER", 3: "B-LOC"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"words": ["b", "is"], "tags": ["O"]}, "a.jsonl:2: 2 words but 1 tags (columns 'words' and 'tags')"),
        ({"words": "b is", "tags": ["O"]}, "a.jsonl:2: 'b is' is no list (column 'words')"),
        ({"words": [], "tags": []}, "a.jsonl:2: an empty list of "),
        ({"words": None, "tags": ["O"]}, "a.jsonl:2: the value is missing (column 'words')"),
        ({"words": ["b", 3], "tags": ["O", "O"]}, "a.jsonl:2: word 2 is '3', not a text (column 'words')"),
        ({"words": ["\ud800"], "tags": ["O"]}, "a.jsonl:2: column 'words' holds half a surrogate pair"),
        ({"words": ["b"], "tags": "O"}, "a.jsonl:2: 'O' is no list (column 'tags')"),
        ({"words": ["b"], "tags": [None]}, "a.jsonl:2: tag 1 is 'None', not a text or a whole number (column 'tags')"),
        ({"words": ["b"], "tags": [""]}, "a.jsonl:2: tag 1 is empty (column 'tags')"),
        ({"words": ["b"], "tags": [True]}, "a.jsonl:2: tag 1 is 'True', not a text or a whole number (column 'tags')"),
        ({"words": ["b"], "tags": [7]}, "holds tags of several types (int and str)"),
    ],
)
def test_faults_are_told_with_file_line_and_column(tmp_path, monkeypatch, row, said):
    monkeypatch.setenv("ISOSTEP_CACHE", str(tmp_path / "cache"))
    good = {"words": ["anna", "is"], "tags": ["B-PER", "O"]}
    found = split(tmp_path, [good, row])
    with pytest.raises(DataError) as caught:
        tokens.load(settings(), Sources(found, {"": split(tmp_path, [good], "b.jsonl")}, None), task([]))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_tag_that_training_lacks_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOSTEP_CACHE", str(tmp_path / "cache"))
    train = split(tmp_path, [{"words": ["anna", "is"], "tags": ["B-PER", "O"]}])
    own = split(tmp_path, [{"words": ["b", "is"], "tags": ["O", "B-ORG"]}], "own.jsonl")
    with pytest.raises(
        DataError, match=r"own.jsonl:1: tag 'B-ORG' of word 2 \(column 'tags'\) does not occur in the tra"
    ):
        tokens.load(settings(), Sources(train, {"": own}, None), task([]))
    with pytest.raises(DataError, match="every tag is 'O'; a classifier needs two"):
        task([]).survey(split(tmp_path, [{"words": ["b"], "tags": ["O"]}]))


def test_columns_are_one_and_one_and_the_tokenizer_is_fast(tmp_path, monkeypatch):
    monkeypatch.setenv("ISOSTEP_CACHE", str(tmp_path / "cache"))
    train = split(tmp_path, [{"words": ["b"], "tags": ["O"]}])
    two = Config.load(overrides=["--run.name", "x", "--model.path", "builtin:tiny", "--data.text", "words", "more",
                                 "--data.label", "tags", "--data.train", "x.jsonl"], handed_in=("task",))  # fmt: skip
    with pytest.raises(ConfigError, match=r"data\.text: name the one column"):
        task([]).input_columns(two)
    made = task([])
    made.tokenizer = SimpleNamespace(is_fast=False)
    with pytest.raises(ConfigError, match="no fast tokenizer"):
        tokens.load(settings(), Sources(train, {}, None), made)


def test_tokens_of_two_tasks_are_kept_apart(tmp_path):
    class Same(Classification):
        target_type = TokenClassification.target_type

    own = Same()
    own.begin(settings(), bert(), 64)
    assert own.fingerprint() != task([]).fingerprint()


# ---- metrics


def conll(tags: list[str]) -> set[tuple[int, int, str]]:
    """Entities by the rules of conlleval, tag by tag."""
    found, open_at, before = set(), None, "O"
    for at, tag in enumerate([*tags, "O"]):
        mark, kind = tag[0], tag[2:]
        other = kind != before[2:]
        if before != "O" and (before[0] in "ES" or mark in "BSO" or other):
            found.add((open_at, at - 1, before[2:]))
        if tag != "O" and (mark in "BS" or before[0] in "ESO" or other):
            open_at = at
        before = tag
    return found


SCHEMES = [TAGS, ["O", "I-A", "B-A", "B-B"], ["B-A", "E-A", "I-A", "I-B", "O", "S-A", "S-B"], ["B-A", "I-A"]]


def random_tags(names: list[str], seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    draw = np.random.default_rng(seed)
    wanted = [draw.integers(0, len(names), draw.integers(0, 8)) for _ in range(30)]
    flip = [draw.random(len(row)) < 0.3 for row in wanted]
    return [
        np.where(f, draw.integers(0, len(names), len(row)), row) for f, row in zip(flip, wanted, strict=True)
    ], wanted


@pytest.mark.parametrize("names", SCHEMES)
@pytest.mark.parametrize("seed", range(5))
def test_entities_are_those_of_a_plain_loop_and_never_go_beyond_a_row(names, seed):
    predicted, wanted = random_tags(names, seed)
    found, true = (
        {(number, *one) for number, row in enumerate(rows) for one in conll([names[tag] for tag in row])}
        for rows in (predicted, wanted)
    )
    right = len(found & true)
    got = task(names).metrics(predicted, wanted)
    assert got == {
        "accuracy": pytest.approx(np.mean(np.concatenate(predicted) == np.concatenate(wanted))),
        "precision": pytest.approx(right / len(found)),
        "recall": pytest.approx(right / len(true)),
        "f1": pytest.approx(2 * right / (len(found) + len(true))),
    }


@pytest.mark.parametrize("names", SCHEMES)
def test_entity_scores_are_those_of_seqeval(names):
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed")
    predicted, wanted = random_tags(names, 9)
    texts = [[[names[tag] for tag in row] for row in rows] for rows in (wanted, predicted)]
    got = task(names).metrics(predicted, wanted)
    for name in ("accuracy", "precision", "recall", "f1"):
        assert got[name] == pytest.approx(getattr(seqeval, f"{name}_score")(*texts)), name


def test_without_an_entity_scores_are_zero():
    outside = [np.full(4, TAGS.index("O"))]
    assert task(TAGS).metrics(outside, outside) == {"accuracy": 1.0, "precision": 0, "recall": 0, "f1": 0}
    assert task(TAGS).metrics([np.zeros(0, int)], [np.zeros(0, int)])["accuracy"] == 0
    assert entities(TAGS, np.zeros(0, np.int64)) == set()


@pytest.mark.parametrize("names", [["ADJ", "NOUN", "VERB"], ["0", "1"], ["O"], ["O", "B-"]])
def test_of_other_tags_the_means_over_classes_are_given(names):
    assert not mark_entities(names)
    predicted, wanted = random_tags(names, 3)
    got, flat = task(names).metrics(predicted, wanted), (np.concatenate(wanted), np.concatenate(predicted))
    for name in ("f1", "precision", "recall"):
        score = getattr(metrics, f"{name}_score")(*flat, average="macro", zero_division=0)
        assert got[f"{name}_macro"] == pytest.approx(score)
    assert set(got) == {"accuracy", "f1_macro", "precision_macro", "recall_macro"}

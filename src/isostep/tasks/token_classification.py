"""A class for each word of a text: names of persons and places, parts of speech."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from tokenizers import pre_tokenizers
from torch import Tensor, nn
from torch.nn import functional

from isostep.data import tokens
from isostep.data.labels import Label, Labels
from isostep.errors import ConfigError, DataError
from isostep.tasks.base import Answers, Encoded, Outcome, logits_of
from isostep.tasks.classification import named
from isostep.tasks.entities import entities, mark_entities
from isostep.tasks.text import TextTask

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedTokenizerBase

    from isostep.config import Config
    from isostep.data.files import Block
    from isostep.data.splits import Split

IGNORED = -100
"""The label of tokens that have none, as torch and transformers have it."""


class TokenClassification(TextTask):
    """Cross-entropy of a class for each word, read off at its first token; an item is a word.

    data.text names one column of lists of words, data.label one of lists of as many tags. A row counts for the words
    that truncation left it. A word that the tokenizer makes nothing of (a lone control character) has no item either.
    """

    target_type = pa.list_(pa.int16())
    auto_class = "AutoModelForTokenClassification"
    labels: Labels

    def begin(self, config: Config, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        super().begin(config, tokenizer, max_length)
        _separate_words(tokenizer)

    def item_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """(N, C) logits, (N,) int64 labels -> (N,) losses, an entry a word."""
        return functional.cross_entropy(logits, labels, reduction="none")

    def decide(self, logits: Tensor) -> Tensor:
        """(N, C) -> (N,) int64."""
        return logits.argmax(-1)

    # ---- from rows to tokens

    def input_columns(self, config: Config) -> list[str]:
        text = list(config.data.text)
        if len(text) != 1:
            raise ConfigError(f"data.text: name the one column that holds the lists of words (got {text})")
        return text

    def texts(self, block: Block, columns: Sequence[str]) -> Iterator[str]:
        for words in _words(block, columns[0]):
            yield from words

    def survey(self, train: Split) -> Labels:
        """The tags of all training rows: numbers by value, texts by code point, or in the order that the data gives."""
        column = self.target_columns(self.config)[0]
        found: set[Label] = set()
        for block in train.blocks([column]):
            for tags in _tags(block, column):
                found.update(tags)
        if len(kinds := {type(tag) for tag in found}) > 1:
            told = " and ".join(sorted(kind.__name__ for kind in kinds))
            raise DataError(f"column {column!r} holds tags of several types ({told}); make them one type")
        if column in train.label_names:
            names = train.label_names[column]
            return Labels(list(range(len(names))), names)
        if len(found) < 2:
            raise DataError(f"column {column!r}: every tag is {next(iter(found))!r}; a classifier needs two or more")
        return Labels.of(sorted(found))

    def survey_tokenised(self, rows: datasets.Dataset) -> Labels:
        highest = max((int(values.max(initial=IGNORED)) for _, values in _label_lists(rows)), default=IGNORED)
        if highest < 1:
            raise DataError(
                f"train: the lists in 'labels' of tokenised rows must hold the classes' numbers from 0, and {IGNORED} "
                "where a token has none; a classifier needs two or more classes"
            )
        return Labels.of(list(range(highest + 1)))

    def encode(self, block: Block) -> Encoded:
        words = _words(block, self.input_columns(self.config)[0])
        typed = "token_type_ids" in self.tokenizer.model_input_names
        made = self.tokenizer(
            words, is_split_into_words=True, truncation=True, max_length=self.max_length, padding=False,
            return_attention_mask=False, return_token_type_ids=typed,
        )  # fmt: skip
        columns: dict[str, list[list[int]]] = {key: made[key] for key in ("input_ids", "token_type_ids")[: 1 + typed]}
        for row, ids in enumerate(columns["input_ids"]):
            if not ids:  # no word gave a token, and the tokenizer adds none: as an empty text
                empty, _ = tokens.encode(self.tokenizer, [[""]], self.max_length)
                for key in columns:
                    columns[key][row] = empty[key][0]
        cut_left = self.tokenizer.truncation_side == "left"
        firsts = [_first_tokens(found, len(row), cut_left) for found, row in zip(made.encodings, words, strict=True)]
        cut = sum(bool(encoding.overflowing) for encoding in made.encodings)
        return Encoded(columns, cut, sum(not any(word.strip() for word in row) for row in words), firsts)

    def targets(self, block: Block, encoded: Encoded) -> list[npt.NDArray[np.int16]]:
        """For each token the class of the word that it begins, else IGNORED."""
        column = self.target_columns(self.config)[0]
        assert encoded.words is not None
        made = []
        listed = _tags(block, column)
        for row, (tags, firsts) in enumerate(zip(listed, encoded.words, strict=True)):
            if len(tags) != len(firsts):
                raise DataError(
                    f"{block.place(row)}: {len(firsts)} words but {len(tags)} tags (columns "
                    f"{self.input_columns(self.config)[0]!r} and {column!r})"
                )
            labels = np.full(len(encoded.columns["input_ids"][row]), IGNORED, np.int16)
            for number, (tag, first) in enumerate(zip(tags, firsts, strict=True), 1):
                try:
                    label = self.labels.index(tag)
                except KeyError:
                    raise DataError(
                        f"{block.place(row)}: tag {tag!r} of word {number} (column {column!r}) does not occur in the "
                        f"training data, whose tags are {', '.join(self.labels.names)}"
                    ) from None
                if first is not None:
                    labels[first] = label
            made.append(labels)
        return made

    def label_counts(self, targets: Sequence[npt.NDArray[np.int16]]) -> npt.NDArray[np.int64]:
        labels = np.concatenate(targets)
        return np.bincount(labels[labels != IGNORED], minlength=len(self.labels))

    def items(self, rows: datasets.Dataset) -> npt.NDArray[np.int32]:
        """(n,) labelled tokens of each row, from the Arrow arrays as they are.

        Raises DataError for tokenised rows whose labels do not fit their tokens or the classes.
        """
        counts, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for offsets, values in _label_lists(rows):
            before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values != IGNORED)])
            counts.append(np.diff(before[offsets]))
            sizes.append(np.diff(offsets))
            odd = values[(values != IGNORED) & ((values < 0) | (values >= len(self.labels)))]
            if len(odd):
                raise DataError(f"the label {odd[0]} in 'labels' is none of the {len(self.labels)} classes")
        chosen = slice(None) if rows._indices is None else rows._indices.column(0).to_numpy()
        if not np.array_equal(np.concatenate(sizes)[chosen], tokens.lengths(rows)):
            raise DataError("the lists in 'labels' must be as long as those in 'input_ids', a label a token")
        return np.concatenate(counts)[chosen].astype(np.int32)

    def shown(self, target: Sequence[int]) -> list[str]:
        return ["-" if label == IGNORED else f"{self.labels.names[label]}/{label}" for label in target]

    # ---- the model, and what it is fed

    def head(self) -> dict[str, Any]:
        return {"num_labels": len(self.labels), **named(self.labels)}

    def collate(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Items flat: `labels`, and `rows` and `positions`, where each stands in the inputs; all (N,) int64."""
        sizes = [len(row["labels"]) for row in rows]
        labels = np.concatenate([np.asarray(row["labels"], np.int64) for row in rows])
        items = np.flatnonzero(labels != IGNORED)  # here, not on the device, which would have to be waited for
        row_numbers = np.repeat(np.arange(len(rows)), sizes)
        positions = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        found = {"labels": labels, "rows": row_numbers, "positions": positions}
        return {"inputs": self.inputs(rows), **{key: torch.from_numpy(values[items]) for key, values in found.items()}}

    def forward(self, model: nn.Module, batch: dict[str, Any]) -> Outcome:
        logits = logits_of(model(**batch["inputs"]))  # (B, T, C)
        rows = batch["rows"]
        return self.outcome(logits[rows, batch["positions"]], batch["labels"], rows)

    # ---- what comes out

    def metrics(self, predictions: Sequence[npt.NDArray[Any]], targets: Sequence[npt.NDArray[Any]]) -> dict[str, float]:
        """Accuracy over words, and precision, recall and F1.

        Of tags that mark entities (O, and B- and I-, or E- and S- too, before a type) those are of whole entities, as
        the CoNLL evaluation counts them and seqeval by default: one is right if its type, its first and its last word
        are. A row ends an entity. Of other tags they are the means over the classes (f1_macro, ...). A score that has
        no case is 0.
        """
        predicted, wanted = np.concatenate(predictions), np.concatenate(targets)
        made = {"accuracy": float((predicted == wanted).mean()) if len(wanted) else 0.0}
        names = self.labels.names
        if not mark_entities(names):
            return made | _macro(predicted, wanted, len(names))
        breaks = np.cumsum([len(row) for row in targets])
        found, true = (entities(names, np.insert(tags, breaks, -1)) for tags in (predicted, wanted))
        right = len(found & true)
        precision, recall = right / max(len(found), 1), right / max(len(true), 1)
        f1 = 2 * right / max(len(found) + len(true), 1)
        return made | {"precision": precision, "recall": recall, "f1": f1}

    def answers(
        self, model: nn.Module, inputs: dict[str, Tensor], words: Sequence[Sequence[int | None]] | None = None
    ) -> Answers:
        """For each row the list of its words' tags, as in the data, and of their probabilities.

        Both are None for a word that truncation cut off or that gave no token.
        """
        assert words is not None, "answers of words need to know which token each begins with"
        scores = logits_of(model(**inputs)).softmax(-1).cpu()  # (B, T, C)
        best, tags = (found.tolist() for found in scores.max(-1))
        values = self.labels.values
        return Answers(
            [
                [None if at is None else values[row[at]] for at in firsts]
                for row, firsts in zip(tags, words, strict=True)
            ],
            [[None if at is None else row[at] for at in firsts] for row, firsts in zip(best, words, strict=True)],
        )


def _macro(predicted: npt.NDArray[Any], wanted: npt.NDArray[Any], classes: int) -> dict[str, float]:
    from sklearn.metrics import precision_recall_fscore_support

    p, r, f, _ = precision_recall_fscore_support(
        wanted, predicted, labels=list(range(classes)), average="macro", zero_division=0
    )
    return {"f1_macro": float(f), "precision_macro": float(p), "recall_macro": float(r)}


def _separate_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Have a byte-level tokenizer put a space before each word, as it finds them in running text.

    Given words it would else make of them what stands at the start of a text, or within a word. It is written down
    with the tokenizer, so that others who load it do the same.
    """
    outer = tokenizer.backend_tokenizer.pre_tokenizer
    parts = list(cast("Any", outer)) if isinstance(outer, pre_tokenizers.Sequence) else [outer]
    for part in parts:
        if isinstance(part, pre_tokenizers.ByteLevel) and not part.add_prefix_space:
            part.add_prefix_space = True
            tokenizer.add_prefix_space = tokenizer.init_kwargs["add_prefix_space"] = True


def _words(block: Block, column: str) -> list[list[str]]:
    """The block's lists of words. Raises DataError for a row that has none, or something else."""
    words = list(_lists(block, column, "word", {str: "a text"}))
    for row, found in enumerate(words):
        try:
            "".join(found).encode()
        except UnicodeEncodeError:  # JSON can spell half of a surrogate pair, which is no character
            raise DataError(
                f"{block.place(row)}: column {column!r} holds half a surrogate pair, not valid text"
            ) from None
    return words


def _tags(block: Block, column: str) -> Iterator[list[Label]]:
    """The block's lists of tags, in order. Raises DataError as above."""
    for row, tags in enumerate(_lists(block, column, "tag", {str: "a text", int: "a whole number"})):
        if "" in tags:
            raise DataError(f"{block.place(row)}: tag {tags.index('') + 1} is empty (column {column!r})")
        yield tags


def _lists(block: Block, column: str, noun: str, kinds: dict[type, str]) -> Iterator[list[Any]]:
    """The column's lists, in order, each with an entry or more of these types. Raises DataError naming the row."""
    for row, found in enumerate(block.columns[column]):
        if not isinstance(found, list):
            said = "the value is missing" if found is None else f"{str(found)[:60]!r} is no list"
            raise DataError(
                f"{block.place(row)}: {said} (column {column!r}); give a list of {noun}s a row, in jsonl or parquet"
            )
        if not found:
            raise DataError(f"{block.place(row)}: an empty list of {noun}s (column {column!r})")
        if not set(map(type, found)) <= kinds.keys():
            number = next(number for number, value in enumerate(found, 1) if type(value) not in kinds)
            raise DataError(
                f"{block.place(row)}: {noun} {number} is {str(found[number - 1])[:60]!r}, not "
                f"{' or '.join(kinds.values())} (column {column!r})"
            )
        yield found


def _first_tokens(encoding: Any, words: int, cut_left: bool) -> list[int | None]:
    """For each word where its first token stands, or None; `encoding` is of the tokenizers library."""
    firsts: list[int | None] = [None] * words
    # of a word whose beginning was cut off, by a tokenizer that cuts on the left, what is left is not its beginning
    beyond = {word for part in encoding.overflowing for word in part.word_ids} if cut_left else set()
    for position, word in enumerate(encoding.word_ids):
        if word is not None and firsts[word] is None and word not in beyond:
            firsts[word] = position
    return firsts


def _label_lists(rows: datasets.Dataset) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """Of each chunk of the stored column `labels` the lists' offsets (n + 1,) and all their values."""
    for chunk in rows.data.column("labels").chunks:
        offsets = chunk.offsets.to_numpy()
        yield offsets - offsets[0], chunk.values[offsets[0] : offsets[-1]].to_numpy(zero_copy_only=False)

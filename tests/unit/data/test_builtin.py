"""builtin:sms: the same everywhere, and neither trivial nor hopeless."""

from __future__ import annotations

import xxhash
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from isostep.data import builtin


def test_the_same_rows_for_ever() -> None:
    """A changed hash needs a raised VERSION: caches and runs know the data by it."""
    everything = repr([(split, builtin.sms(split)) for split in builtin.ROWS]).encode()
    assert (builtin.VERSION, xxhash.xxh3_64_hexdigest(everything)) == (1, "7d1c1ed1373a8bc7")


def test_sizes_and_balance() -> None:
    for split, count in builtin.ROWS.items():
        rows = builtin.sms(split)
        assert len(rows) == count
        assert 0.4 < sum(label == "spam" for _, label in rows) / count < 0.5
        assert {label for _, label in rows} == {"spam", "ham"} and all(text.strip() for text, _ in rows)
    train = {text for text, _ in builtin.sms("train")}
    assert sum(text in train for text, _ in builtin.sms("validation")) < 0.05 * builtin.ROWS["validation"]


def accuracy(longest: int) -> float:
    words = CountVectorizer(ngram_range=(1, longest), token_pattern=r"\b\w+\b")
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=2000))
    model.fit(*zip(*builtin.sms("train"), strict=True))
    return float(model.score(*zip(*builtin.sms("validation"), *builtin.sms("test"), strict=True)))


def test_word_order_matters() -> None:
    single, pairs = accuracy(1), accuracy(2)
    assert single < 0.90 and 0.95 < pairs < 0.985

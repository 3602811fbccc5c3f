"""The benchmarks' own arithmetic: a wrong split, difference or ratio would make every published table wrong."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import quality
import runs
import tables
import trainer


def test_split_holds_out_the_share_of_each_label_once() -> None:
    labels = ["ham"] * 70 + ["spam"] * 10 + ["ham"] * 20
    train, held = tables.stratified_split(labels, 0.2, seed=3)
    assert sorted(train + held) == list(range(100))
    assert Counter(labels[row] for row in held) == {"ham": 18, "spam": 2}
    assert tables.stratified_split(labels, 0.2, seed=3) == (train, held)
    assert tables.stratified_split(labels, 0.2, seed=4) != (train, held)


@pytest.mark.parametrize("share", [0, 1, 1.5])
def test_split_refuses_a_share_outside_zero_and_one(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        tables.stratified_split(["a", "b"], share, seed=0)


def test_worst_relative_is_the_largest_over_the_reference() -> None:
    assert tables.worst_relative({1: 2.0, 2: -4.0}, {1: 2.1, 2: -5.0}) == 0.25
    assert tables.worst_relative({1: 2.0}, {1: 2.0}) == 0


@pytest.mark.parametrize("other", [{}, {1: 1.0}, {1: 1.0, 3: 1.0}, {1: 1.0, 2: math.nan}])
def test_worst_relative_is_infinite_when_nothing_can_be_compared(other: dict[int, float]) -> None:
    assert tables.worst_relative({1: 1.0, 2: 1.0}, other) == math.inf


def test_two_empty_curves_do_not_count_as_equal() -> None:
    assert tables.worst_relative({}, {}) == math.inf


def test_markdown_has_one_line_a_row_and_refuses_ragged_ones() -> None:
    assert tables.markdown(["a", "b"], [[1, 2], ["x", "y"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |\n| x | y |"
    with pytest.raises(ValueError, match="cells"):
        tables.markdown(["a", "b"], [[1]])


def test_quality_table_gives_each_seed_mean_and_spread_of_both() -> None:
    ours = {2: (0.85, 0.9), 1: (0.83, 0.88)}
    theirs = {1: (0.8, 0.86), 2: (0.84, 0.9)}
    lines = tables.quality_table(ours, theirs, ("A", "B")).splitlines()
    assert lines[0] == "| seed | A: accuracy | A: F1 | B: accuracy | B: F1 |"
    assert lines[2] == "| 1 | 0.8300 | 0.8800 | 0.8000 | 0.8600 |"
    assert lines[4] == "| mean | 0.8400 | 0.8900 | 0.8200 | 0.8800 |"
    assert lines[5] == "| spread (max - min) | 0.0200 | 0.0200 | 0.0400 | 0.0400 |"


def test_quality_table_refuses_means_over_other_seeds() -> None:
    with pytest.raises(ValueError, match="differ"):
        tables.quality_table({1: (0.8, 0.8)}, {2: (0.8, 0.8)}, ("A", "B"))


def test_ratios_are_over_the_first_cut() -> None:
    lines = tables.ratio_table([(1, 8, 1), (1, 2, 4)], [(0.7, 0.05), (2.8, 0.2)]).splitlines()
    assert lines[2].endswith("| 0.7000 | 0.0500 | 1 | 1 |")
    assert lines[3] == "| 1 | 2 | 4 | 2.8000 | 0.2000 | 4 | 4 |"


def test_difference_table_finds_the_largest_and_a_missing_step() -> None:
    runs_ = {(1, 64): {"loss": {1: 1.0, 2: 2.0}}, (2, 64): {"loss": {1: 1.0, 2: 2.002}}}
    table, largest = tables.difference_table(runs_, ["loss"])
    assert largest == pytest.approx(1e-3)
    assert table.splitlines()[2:] == ["| 1 | 64 | reference |", "| 2 | 64 | 1.0e-03 |"]
    runs_[4, 64] = {"loss": {1: 1.0}}
    assert tables.difference_table(runs_, ["loss"])[1] == math.inf


def test_a_difference_in_any_key_of_any_run_counts() -> None:
    same = {1: 1.0}
    equal = {"loss": same, "norm": same, "f1": same}
    runs_ = {(1, 64): equal, (2, 64): {**equal, "norm": {1: 1.5}}, (4, 64): equal}
    assert tables.difference_table(runs_, ["loss", "norm", "f1"])[1] == 0.5


def test_series_collects_each_key_by_step(tmp_path: Path) -> None:
    rows = [{"step": 1, "train/loss": 0.5}, {"step": 2, "train/loss": 0.4, "eval/loss": 0.6}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    got = runs.series(tmp_path)
    assert got["train/loss"] == {1: 0.5, 2: 0.4}
    assert got["eval/loss"] == {2: 0.6}


def test_written_split_keeps_every_line_with_stray_quotes_and_mark(tmp_path: Path) -> None:
    source = tmp_path / "all.tsv"
    lines = [f'{"spam" if n % 5 == 0 else "ham"}\t" message {n} "quoted' for n in range(50)]
    source.write_text("\ufeff" + "\n".join(["Label\tSMS", *lines]) + "\n", encoding="utf-8")
    train, held = quality.write_split(source, "Label", 0.2, tmp_path / "parts")
    read = [trainer.read_rows(path) for path in (train, held)]
    assert sorted(f"{row['Label']}\t{row['SMS']}" for part in read for row in part) == sorted(lines)
    assert Counter(row["Label"] for row in read[1]) == {"ham": 8, "spam": 2}


def test_labels_are_sorted_by_value_or_by_code_point() -> None:
    assert trainer.sorted_labels(["10", "9", "10"]) == ["9", "10"]
    assert trainer.sorted_labels(["spam", "Ham", "ham"]) == ["Ham", "ham", "spam"]


def peer_result(tmp_path: Path, **changed: object) -> list[str]:
    settings = {"epochs": 3, "batch": 16, "lr": 5e-5, "max_length": 256, "seed": 1, "accumulation": 1, **changed}
    stored = {"arguments": settings, "world_size": 1, "final": {"accuracy": 0.85, "f1": 0.9}}
    (tmp_path / "set-trainer-1.json").write_text(json.dumps(stored))
    return ["--data", str(tmp_path / "set"), "--peers", str(tmp_path)]


def test_a_stored_peer_result_is_read(tmp_path: Path) -> None:
    args = quality.arguments(peer_result(tmp_path))
    assert quality.peer_scores(args, {}, 1, tmp_path) == (0.85, 0.9)


@pytest.mark.parametrize("changed", [{"lr": 1e-4}, {"accumulation": 4}, {"seed": 2}, {"batch": 32}])
def test_a_stored_peer_result_of_other_settings_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    args = quality.arguments(peer_result(tmp_path, **changed))
    with pytest.raises(ValueError, match="wanted"):
        quality.peer_scores(args, {}, 1, tmp_path)

from __future__ import annotations

import csv
import datetime
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import pipeline

from isostep.checkpoint.export import export
from isostep.cli import predict, predictor
from isostep.cli.answer_files import AnswerFiles, StoppedError
from isostep.config import Config, Data, Model, schema
from isostep.data import files
from isostep.data.labels import Label, Labels
from isostep.errors import ConfigError, DataError, FolderInUseError
from isostep.models.load import load_model
from isostep.models.tokenizer import load_tokenizer
from isostep.tasks import Answers, Classification, make_task

WORDS = "a man is here there was never good bad film not very and it they we you now then again".split()  # noqa: SIM905


def sentences(n: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 25))) for _ in range(n)]


def make_run(
    folder: Path,
    labels: list[Label] | None,
    text: tuple[str, ...],
    weights: tuple[str, ...] = ("final",),
    **task: Any,
) -> Path:
    """A run folder as training leaves it; scaled weights and a centred head give every label to some rows."""
    config = Config(
        model=Model(path="builtin:tiny"),
        data=Data(text=text, label="label", max_length=24),
        task=schema.Task(**task),
    )
    tokenizer = load_tokenizer(config, lambda: iter(sentences(200, 0)), folder / "cache")
    for seed, name in enumerate(weights):
        torch.manual_seed(seed)
        made = make_task(config)
        made.labels = Labels.of(labels) if labels is not None else None
        model: Any = load_model(config, made, tokenizer)
        for weight in model.parameters():
            weight.data.mul_(2.5) if weight.dim() > 1 else None
        with torch.no_grad():
            inputs = tokenizer(*[sentences(50, 8), sentences(50, 9)][: len(text)], padding=True, return_tensors="pt")
            model.classifier.bias -= model.eval()(**inputs).logits.mean(0)
        export(model, tokenizer, folder / name, "")
    (folder / "config.yaml").write_text(config.to_yaml())
    return folder


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("single"), [0, 1], ("text",))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("pair"), ["no", "perhaps", "yes"], ("first", "second"))


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def matrix(rows: list[dict[str, Any]]) -> Any:
    return np.array([list(row["scores"].values()) for row in rows])


def test_scores_do_not_depend_on_the_batch_and_equal_the_pipelines(single: Path, tmp_path: Path) -> None:
    texts = sentences(60, 1)
    source = write_lines(tmp_path / "in.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])
    found = []
    for tokens in ("1", "77", "8192"):
        output = tmp_path / f"{tokens}.jsonl"
        assert (
            predict.run([str(single), "--input", str(source), "--output", str(output), "--batch-tokens", tokens]) == 0
        )
        found.append(read_lines(output))
    for rows in found:
        assert [(row["id"], row["text"]) for row in rows] == list(enumerate(texts))
        np.testing.assert_allclose(matrix(rows), matrix(found[0]), rtol=0, atol=1e-5)
        assert [row["prediction"] for row in rows] == matrix(rows).argmax(-1).tolist()
    assert {type(row["prediction"]) for row in found[0]} == {int} and len({row["prediction"] for row in found[0]}) == 2

    classify: Any = pipeline("text-classification", model=str(single / "final"), device="cpu")
    for row, said in zip(found[2], classify(texts, top_k=None, truncation=True, max_length=24), strict=True):
        for one in said:
            assert row["scores"][one["label"]] == pytest.approx(one["score"], abs=1e-5)


def test_pairs_equal_the_pipelines(pair: Path, tmp_path: Path) -> None:
    firsts, seconds = sentences(30, 2), sentences(30, 3)
    source = write_lines(
        tmp_path / "in.jsonl", [{"first": a, "second": b} for a, b in zip(firsts, seconds, strict=True)]
    )
    output = tmp_path / "out.jsonl"
    predict.predict(pair, source, output)
    classify: Any = pipeline("text-classification", model=str(pair / "final"), device="cpu")
    rows = read_lines(output)
    assert len(rows) == 30 and len({row["prediction"] for row in rows}) > 1
    for row in rows:
        said = classify({"text": row["first"], "text_pair": row["second"]}, top_k=None, truncation=True, max_length=24)
        assert row["prediction"] == said[0]["label"] == max(row["scores"], key=row["scores"].__getitem__)
        assert row["scores"] == pytest.approx({one["label"]: one["score"] for one in said}, abs=1e-5)


def test_regression_and_multi_label_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 16)
    texts = sentences(50, 11)
    source = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    runs = {
        "regression": make_run(tmp_path / "a", None, ("text",), kind="regression"),
        "multi-label": make_run(tmp_path / "b", ["x", "y", "z"], ("text",), multi_label=True),
    }
    for kind, run in runs.items():
        classify: Any = pipeline("text-classification", model=str(run / "final"), device="cpu")
        said = classify(texts, top_k=None, truncation=True, max_length=24)
        predict.predict(run, source, tmp_path / "out.jsonl")
        rows = read_lines(tmp_path / "out.jsonl")
        for row, one in zip(rows, said, strict=True):
            values = {entry["label"]: entry["score"] for entry in one}
            if kind == "regression":
                assert row["prediction"] == row["scores"]["value"] == pytest.approx(values["LABEL_0"], abs=1e-5)
            else:
                assert row["scores"] == pytest.approx(values, abs=1e-5)
                assert row["prediction"] == [name for name, score in row["scores"].items() if score > 0.5]
        predict.predict(run, source, tmp_path / "out.csv")
        (block,) = [*files.read(tmp_path / "out.csv")][:1]
        assert [json.loads(text) for text in block.columns["prediction"]] == [row["prediction"] for row in rows[:16]]
        predict.predict(run, source, tmp_path / "out.parquet")
        table = pq.read_table(tmp_path / "out.parquet")
        assert table["prediction"].to_pylist() == [row["prediction"] for row in rows]
        assert table.schema.field("prediction").type == (
            pa.float64() if kind == "regression" else table.schema.field("prediction").type
        )
    assert {len(row["prediction"]) for row in rows} > {0, 1}


def test_parquet_knows_the_type_of_lists_that_are_empty_at_first(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of tasks whose answers are lists for each row."""
    monkeypatch.setattr(files, "BLOCK_ROWS", 2)
    listed: list[Any] = [[], [], ["PER"], [], ["LOC", "O"]]
    scores: list[Any] = [[], [], [{"O": 0.5}], [], [{"O": 1}, {"O": 0.25}]]

    def answer(self: Any, block: Any, batch_tokens: int, check: Any) -> Answers:
        first = block.numbers[0] - 1
        return Answers(listed[first : first + len(block)], scores[first : first + len(block)])

    monkeypatch.setattr(predictor.Predictor, "__call__", answer)
    source = write_lines(tmp_path / "in.jsonl", [{"text": "a"}] * 5)
    for ending in ("parquet", "jsonl"):
        predict.predict(single, source, tmp_path / f"out.{ending}")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["prediction"].to_pylist() == listed and table["scores"].to_pylist() == scores
    assert table.schema.field("prediction").type == pa.list_(pa.string())
    assert [row["prediction"] for row in read_lines(tmp_path / "out.jsonl")] == listed


class Killed(BaseException):
    """A kill: nothing that comes after it counts."""


def test_a_start_after_a_kill_goes_on_and_another_input_or_model_starts_anew(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 8)
    rows = [{"text": text} for text in sentences(30, 12)]
    source, output = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    run = tmp_path / "run"
    shutil.copytree(single, run)
    call, answered, most = predictor.Predictor.__call__, 0, 99

    def counted(self: Any, block: Any, *rest: Any) -> Answers:
        nonlocal answered
        if answered == most:
            raise Killed
        answered += 1
        return call(self, block, *rest)

    monkeypatch.setattr(predictor.Predictor, "__call__", counted)

    def start(kill_after: int, batch_tokens: int = 100) -> int:
        nonlocal answered, most
        answered, most = 0, kill_after
        try:
            assert predict.predict(run, source, output, None, batch_tokens) == (30, 8 * (4 - answered))
        except Killed:
            gc.collect()  # the lock goes with the process
        return answered

    assert start(99) == 4
    whole = output.read_bytes()
    output.write_text("before")
    assert start(2) == 2 and output.read_text() == "before"
    assert start(1) == 1 and output.read_text() == "before"
    assert start(99) == 1 and output.read_bytes() == whole

    def damage() -> None:
        part = next((tmp_path / ".out.jsonl.parts").glob("*/00000001.json"))
        part.write_bytes(part.read_bytes()[:-1])

    def other_weights() -> None:
        card = run / "final" / "README.md"
        card.write_text("another card changes nothing")
        config = run / "final" / "config.json"
        config.write_text(config.read_text() + " ")

    start(2)
    damage()
    assert start(99) == 3 and output.read_bytes() == whole
    start(2)
    assert start(99, batch_tokens=50) == 4
    start(2)
    other_weights()
    assert start(99) == 4 and output.read_bytes() == whole
    start(2)
    write_lines(source, [{**row, "id": 1} for row in rows])
    assert start(99) == 4
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_one_writer_to_an_output(single: Path, tmp_path: Path) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", [{"text": "a man"}]), tmp_path / "out.jsonl"
    other = AnswerFiles(output, "key", "start")
    other.begin()
    with pytest.raises(FolderInUseError, match=r"out.jsonl is being written by another") as refused:
        predict.predict(single, source, output)
    assert refused.value.exit_code == 5 and other.claim(0)
    other.remove()
    assert predict.predict(single, source, output) == (1, 0)


def test_a_rank_that_stands_still_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    answers = AnswerFiles(tmp_path / "out.jsonl", "key", "start")
    answers.begin()
    assert answers.claim(3) and not answers.claim(3)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"block 00000003 has not moved for 0.3 s"):
        answers.wait(0.3)
    assert time.monotonic() - began < 2
    answers.write(3, Answers([1], [{}]))
    answers.wait(0.3)
    answers.fail()
    with pytest.raises(StoppedError):
        answers.check()


def write_table(path: Path, rows: list[dict[str, str]]) -> Path:
    names = list(rows[0])
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        write_lines(path, rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([names, *(row.values() for row in rows)])
    else:
        path.write_text("".join("\t".join(line) + "\n" for line in [names, *(list(row.values()) for row in rows)]))
    return path


ENDINGS = ["csv", "tsv", "json", "jsonl", "parquet"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_gives_the_same_rows_and_scores(single: Path, tmp_path: Path, ending: str) -> None:
    rows = [{"id": f"00{i}", "text": text, "note": 'null, "NA"; ü'} for i, text in enumerate(["", *sentences(9, 4)])]
    source = write_table(tmp_path / f"in.{ending}", rows)
    outputs = {}
    for other in ENDINGS:
        output = tmp_path / f"out.{other}"
        predict.predict(single, source, output)
        (block,) = files.read(output)
        outputs[other] = [
            dict(zip(block.columns, row, strict=True)) for row in zip(*block.columns.values(), strict=True)
        ]
        for row in outputs[other]:
            if other in ("csv", "tsv"):
                row["prediction"], row["scores"] = int(row["prediction"]), json.loads(row["scores"])
            assert list(row) == ["id", "text", "note", "prediction", "scores"] and list(row["scores"]) == ["0", "1"]
    assert [{name: row[name] for name in rows[0]} for row in outputs["json"]] == rows
    assert all(outputs[other] == outputs["json"] for other in ENDINGS)


def test_predictions_are_the_datas_own_labels(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in sentences(20, 5)])
    cases: dict[str, list[Label]] = {"bool": [False, True], "int": [-1, 7], "text": ["ham", "spam"]}
    for name, labels in cases.items():
        run = make_run(tmp_path / name, labels, ("text",))
        predict.predict(run, source, tmp_path / "out.jsonl")
        found = [row["prediction"] for row in read_lines(tmp_path / "out.jsonl")]
        assert {(type(value), value) for value in found} == {(type(value), value) for value in labels}
        predict.predict(run, source, tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet")["prediction"].to_pylist() == found


def test_weights_best_else_final_or_as_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", [0, 1], ("text",), ("final", "best"))
    source = write_lines(tmp_path / "in.jsonl", [{"text": text} for text in sentences(8, 6)])

    def scores(weights: str | None) -> Any:
        predict.predict(run, source, tmp_path / "out.jsonl", weights)
        return matrix(read_lines(tmp_path / "out.jsonl"))

    best, final = scores("best"), scores("final")
    assert np.abs(best - final).max() > 1e-3
    assert (scores(None) == best).all() and (scores(str(run / "final")) == final).all()
    os.rename(run / "best", tmp_path / "moved")
    assert (scores(None) == final).all() and (scores(str(tmp_path / "moved")) == best).all()
    for weights, said in (("best", "best"), (str(tmp_path / "nowhere"), "nowhere")):
        with pytest.raises(ConfigError, match=rf"^--weights: there is no folder .*{said}$"):
            scores(weights)


def test_many_blocks_keep_their_order(single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 7)
    source = write_lines(tmp_path / "in.jsonl", [{"text": text, "n": i} for i, text in enumerate(sentences(50, 7))])
    assert predict.predict(single, source, tmp_path / "out.json") == (50, 0)
    assert [row["n"] for row in json.loads((tmp_path / "out.json").read_text())] == list(range(50))


def test_parquet_types_stay(single: Path, tmp_path: Path) -> None:
    day = datetime.date(2024, 2, 29)
    table = pa.table({"text": ["a man", "a film"], "n": pa.array([1, None], pa.int8()), "day": pa.array([day, None])})
    pq.write_table(table, tmp_path / "in.parquet")
    predict.predict(single, tmp_path / "in.parquet", tmp_path / "out.parquet")
    out = pq.read_table(tmp_path / "out.parquet")
    assert out.select(["text", "n", "day"]).equals(table)
    assert out.schema.field("scores").type == pa.struct([("0", pa.float64()), ("1", pa.float64())])
    predict.predict(single, tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert [row["day"] for row in read_lines(tmp_path / "out.jsonl")] == ["2024-02-29", None]


def test_columns_that_come_late(single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 2)
    rows: list[dict[str, Any]] = [{"text": "a"}, {"text": "b"}, {"text": "c", "late": 1}]
    source = write_lines(tmp_path / "in.jsonl", rows)
    predict.predict(single, source, tmp_path / "out.jsonl")
    assert [row.get("late") for row in read_lines(tmp_path / "out.jsonl")] == [None, None, 1]
    for ending in ("csv", "parquet"):
        with pytest.raises(DataError, match=r"in.jsonl:3: .*'late'.*jsonl"):
            predict.predict(single, source, tmp_path / f"out.{ending}")
    mixed = write_lines(tmp_path / "mixed.jsonl", [{"text": "a", "x": 1}, {"text": "b", "x": "one"}])
    with pytest.raises(DataError, match=r"mixed.jsonl:1: column 'x' .*jsonl"):
        predict.predict(single, mixed, tmp_path / "out.parquet")


def test_faults_are_one_line_and_leave_the_output_alone(single: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.tsv"
    output.write_text("before")

    def refused(kind: type[Exception], pattern: str, source: Path, run: Path = single, to: Path = output) -> None:
        with pytest.raises(kind, match=pattern) as caught:
            predict.predict(run, source, to)
        assert "\n" not in str(caught.value)
        assert output.read_text() == "before" and not [name for name in os.listdir(tmp_path) if name.startswith(".")]

    good = write_lines(tmp_path / "good.jsonl", [{"text": "a man"}])
    refused(ConfigError, r"nowhere is no run folder", good, tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.yaml").write_text((single / "config.yaml").read_text())
    refused(ConfigError, r"neither best/ nor final/", good, empty)
    refused(ConfigError, r"^--output: .*out.xlsx must end in", good, to=tmp_path / "out.xlsx")
    refused(ConfigError, r"^--output: there is no folder .*nowhere$", good, to=tmp_path / "nowhere" / "out.csv")
    refused(DataError, r"missing.csv: no such file", tmp_path / "missing.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    refused(DataError, r"pipe.csv is no regular file", tmp_path / "pipe.csv")
    refused(DataError, r"x.jsonl: no column 'text'", write_lines(tmp_path / "x.jsonl", [{"txt": "a"}]))
    refused(DataError, r"x.jsonl:2: missing text", write_lines(tmp_path / "x.jsonl", [{"text": "a"}, {"text": None}]))
    refused(
        DataError,
        r"x.jsonl has a column 'scores' already",
        write_lines(tmp_path / "x.jsonl", [{"text": "a", "scores": 1}]),
    )
    refused(
        DataError,
        r"x.jsonl:2: column 'text' holds a tab",
        write_lines(tmp_path / "x.jsonl", [{"text": "a"}, {"text": "b\tc"}]),
    )
    refused(
        DataError, r"x.jsonl: column 'a\\tb' holds a tab", write_lines(tmp_path / "x.jsonl", [{"text": "a", "a\tb": 1}])
    )


def test_command_line(single: Path, tmp_path: Path) -> None:
    """The whole command: codes, one line on stderr, no traceback; help without torch."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        lines = ["import sys", "from isostep.cli.main import main", "code = main(sys.argv[1:])"]
        lines += ["assert 'torch' not in sys.modules", "sys.exit(code)"]
        command = [sys.executable, "-c", "\n".join(lines), "predict", *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert "--batch-tokens" in call("--help").stdout
    done = call(str(tmp_path), "--input", "x.csv", "--output", str(tmp_path / "y.csv"))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert call(str(single), "--input", "x.csv", "--output", "y.csv", "--batch-tokens", "0").returncode == 2


def test_a_task_of_ones_own_is_handed_in_or_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["ham", "spam"], ("text",))
    source = tmp_path / "in.csv"
    source.write_text("text\na man\nnever\n")
    own = {"task": {"name": "Wary", "replaces": ["decide", "answers"]}}
    (run / "env.json").write_text(json.dumps(own))
    with pytest.raises(ConfigError, match=r"trained with a task of its own, Wary, which replaces decide, answers; "):
        predict.predict(run, source, tmp_path / "out.csv")
    handed_in = Classification()
    assert predict.predict(run, source, tmp_path / "out.csv", task=handed_in) is not None
    for known in ({"task": {"name": "Smoothed", "replaces": []}}, {}):
        (run / "env.json").write_text(json.dumps(known))
        assert predict.predict(run, source, tmp_path / "known.csv") is not None

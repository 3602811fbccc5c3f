"""Each format against a naive reading, and each fault with its place."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isostep.data import files
from isostep.errors import DataError

SHARED = Path(__file__).resolve().parents[3] / "../shared/data"


def rows(path: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return [
        {name: values[i] for name, values in block.columns.items()}
        for block in files.read(path, columns)
        for i in range(len(block))
    ]


def places(path: Path) -> list[str]:
    return [block.place(i).removeprefix(str(path)) for block in files.read(path) for i in range(len(block))]


def fault(path: Path, columns: list[str] | None = None) -> str:
    with pytest.raises(DataError) as caught:
        rows(path, columns)
    return str(caught.value).replace(str(path.parent) + "/", "")


def made(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("name", "count"),
    [("mrpc/train.tsv", 3667), ("mrpc/dev.tsv", 408), ("mrpc/test.tsv", 1725), ("sms/SMSSpamCollection.tsv", 5574)],
)
def test_raw_sets_row_for_row(name: str, count: int) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip("the raw MRPC and SMS files are not beside the repository")
    lines = [
        line.split("\t") for line in path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n") if line
    ]
    got = rows(path)
    assert got == [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    assert len(got) == count


def test_csv_values_stay_texts(tmp_path: Path) -> None:
    path = made(tmp_path, "a.csv", '\ufefftext,label\r\nnull,NA\r\nNone,1.0\r\n"",\r\n"say ""hi"", now",007\r\n')
    assert rows(path) == [
        {"text": "null", "label": "NA"},
        {"text": "None", "label": "1.0"},
        {"text": "", "label": ""},
        {"text": 'say "hi", now', "label": "007"},
    ]


def test_csv_lines_count_quoted_breaks_and_blank_lines(tmp_path: Path) -> None:
    path = made(tmp_path, "a.csv", 'a,b\n"one\ntwo\r\nthree",1\n\n5" disk,2\nlast,3')
    assert rows(path) == [{"a": "one\ntwo\r\nthree", "b": "1"}, {"a": '5" disk', "b": "2"}, {"a": "last", "b": "3"}]
    assert places(path) == [":2", ":6", ":7"]


def test_csv_faults_name_the_physical_line(tmp_path: Path) -> None:
    text = 'a,b\n"one\ntwo",1\n\nonly one\n'
    assert fault(made(tmp_path, "a.csv", text)) == "a.csv:5: expected 2 fields, found 1"
    assert fault(made(tmp_path, "b.csv", 'a,b\nx,1\n"never closed,2\ny,3\n')).startswith(
        "b.csv:3: broken csv: a quote that opens here is never closed"
    )


def test_tsv_is_unquoted(tmp_path: Path) -> None:
    path = made(tmp_path, "a.tsv", '\ufeffa\tb\r\n"open\tx\r\n\r\n""\ty\r"\r\n\t\r\n')
    assert rows(path) == [{"a": '"open', "b": "x"}, {"a": '""', "b": 'y\r"'}, {"a": "", "b": ""}]
    assert places(path) == [":2", ":4", ":5"]
    assert fault(made(tmp_path, "b.tsv", "a\tb\nx\ty\nx\ty\tz\n")) == "b.tsv:3: expected 2 fields, found 3"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_invalid_utf8_names_the_line(tmp_path: Path, name: str) -> None:
    good = b'{"a": "x"}\n' if name.endswith("l") else b"a\n" + b"fine\n" * 9
    lines = good.count(b"\n")
    assert fault(made(tmp_path, name, good + b"caf\xe9\n")).startswith(f"{name}:{lines + 1}: not valid UTF-8")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    path = made(tmp_path, name, '\ufeff{"a": "x\u2028y", "b": 1}\r\n\n{"a": null, "b": true}\n  {"b": "1"}\n')
    assert rows(path) == [{"a": "x\u2028y", "b": 1}, {"a": None, "b": True}, {"a": None, "b": "1"}]
    assert [type(row["b"]) for row in rows(path)] == [int, bool, str]
    assert places(path) == [":1", ":3", ":4"]


@pytest.mark.parametrize("chunk", [1, 7, 64])  # characters: elements are met cut off everywhere
@pytest.mark.parametrize("indent", [None, 2])
def test_json_array(tmp_path: Path, indent: int | None, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isostep.data.json_rows._CHUNK", chunk)
    monkeypatch.setattr(files, "BLOCK_ROWS", 3)
    values = [{"a": f'"{"long " * i}\\ \u20ac', "b": i, "c": [{"d": -1.5}, None]} for i in range(20)]
    path = made(tmp_path, "a.json", json.dumps(values, indent=indent))
    assert rows(path) == values
    text = path.read_text()
    starts = [text.index(json.dumps(value["a"])) for value in values]
    back = 1 if indent else 0  # the brace stands on the line before its first key
    assert places(path) == [f":{text.count(chr(10), 0, start) + 1 - back}" for start in starts]
    assert rows(path, ["b"]) == [{"b": i} for i in range(20)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl:2: broken JSON: Expecting value"),
        ("a.jsonl", '{"a": 1}\n\n[1]\n', "a.jsonl:3: expected an object"),
        ("a.json", '[{"a": 1},\n {"a": x}]', "a.json:2: broken JSON: Expecting value"),
        ("a.json", '[{"a": 1},\n {"a": 2}\n {"a": 3}]', "a.json:3: broken JSON"),
        ("a.json", '[{"a": 1},\n {"a": 2}', "a.json:2: broken JSON"),
        ("a.json", '[{"a": 1},\n {"a": "never', "a.json:2: broken JSON: Unterminated string"),
        ("a.json", '[{"a": 1},\n 7]', "a.json:2: expected an object"),
        ("a.json", '[{"a": 1}]\n]', "a.json:2: broken JSON: text after"),
        ("a.json", '{"a": 1}\n{"a"', "a.json:2: broken JSON"),
        ("a.json", "[" * 100_000, "a.json:1: broken JSON: nested too deeply"),
    ],
)
def test_broken_json_names_the_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    assert fault(made(tmp_path, name, text)).startswith(said)


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_ROWS", 2)
    path = tmp_path / "a.parquet"
    values = {"a": ["x", None, "null"], "b": [1, 2, 3], "c": [True, False, None]}
    pq.write_table(pa.table(values), path)
    assert rows(path) == [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    assert rows(path, ["c", "a"]) == [{"c": c, "a": a} for c, a in zip(values["c"], values["a"], strict=True)]
    assert places(path) == [", row 1", ", row 2", ", row 3"]
    assert fault(made(tmp_path, "b.parquet", "nothing of the kind")).startswith("b.parquet: broken parquet")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_a_column_that_is_not_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    table = pa.table({"sentence": ["x"], "label": ["y"]})
    if name.endswith("parquet"):
        pq.write_table(table, path)
    elif "json" in name:
        path.write_text(json.dumps(table.to_pylist()[0]))
    else:
        between = "," if name.endswith("csv") else "\t"
        path.write_text(f"sentence{between}label\nx{between}y\n")
    said = f"{name}: no column 'sentense'; its columns: sentence, label; did you mean 'sentence'?"
    assert fault(path, ["sentense"]) == said


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    path = made(tmp_path, "a.csv", "a,a,b\n1,2,3\n")
    assert "more than once" in fault(path, ["a"])
    assert rows(path, ["b"]) == [{"b": "3"}]


@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", ""), ("a.csv", "a,b\n"), ("a.tsv", "a\tb\n\n"), ("a.jsonl", "\n"), ("a.json", "[]")]
)
def test_no_rows(tmp_path: Path, name: str, text: str) -> None:
    assert fault(made(tmp_path, name, text)) == f"{name} is empty: it holds no rows"


def test_no_rows_in_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert fault(tmp_path / "a.parquet") == "a.parquet is empty: it holds no rows"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet"])
def test_very_long_texts(tmp_path: Path, name: str) -> None:
    values = [{"a": "word " * 2_000_000, "b": "x"}, {"a": "short", "b": "word " * 10_000}]
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(values), path)
    elif name == "a.json":
        path.write_text(json.dumps(values))
    elif name == "a.jsonl":
        path.write_text("\n".join(map(json.dumps, values)))
    else:
        between = "," if name == "a.csv" else "\t"
        path.write_text("\n".join(["a" + between + "b", *(between.join(row.values()) for row in values)]))
    assert rows(path) == values


def test_expand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.csv", "a.csv", "c[1].csv", "d.txt"):
        made(tmp_path, name, "a\nx\n")
    (tmp_path / "folder.csv").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [path.name for path in files.expand("*.csv")] == ["a.csv", "b.csv", "c[1].csv"]
    assert files.expand("c[1].csv") == [Path("c[1].csv")]
    for pattern, said in [
        ("no/such.csv", "no/such.csv: no such file"),
        ("e*.csv", "e*.csv matches no file"),
        ("folder.csv", "folder.csv is a folder"),
        ("d.txt", "the ending .txt is unknown"),
    ]:
        with pytest.raises(DataError) as caught:
            files.expand(pattern)
        assert said in str(caught.value)


MEASURE = """
import resource, sys
from isostep.data import files
blocks = files.read(sys.argv[1])
next(blocks)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(map(len, blocks))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, name: str) -> None:
    path, count = tmp_path / name, 200_000
    with open(path, "w", newline="") as file:
        if name == "a.csv":
            csv.writer(file).writerows([["a", "b"], *([f"text {i} " + "x" * 200, i] for i in range(count))])
        else:
            file.write("[" + ",\n".join(f'{{"a": "text {i} {"x" * 200}"}}' for i in range(count)) + "]")
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    read, grown = done.stdout.split()
    assert int(read) == count - files.BLOCK_ROWS
    assert float(grown) < 16  # MiB; the file has 43

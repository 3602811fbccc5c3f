"""YAML as it is read here: scalars of YAML 1.2, duplicate keys refused, one line for broken syntax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from isostep.config.syntax import Loader, dump, read, scalar
from isostep.errors import ConfigError

VALUES = [
    ("5e-5", 5e-5), ("1e3", 1000.0), ("-1.5E+2", -150.0), (".5", 0.5), ("3.", 3.0), ("7", 7), ("-7", -7), ("010", 10),
    ("0x1f", 31), ("0o17", 15), ("true", True), ("false", False), ("null", None), ("~", None), ("no", "no"),
    ("yes", "yes"), ("on", "on"), ("off", "off"), ("y", "y"), ("1_000", "1_000"), ("12:30", "12:30"), ("None", "None"),
    ("2024-01-02", "2024-01-02"), ("builtin:sms", "builtin:sms"), ("<<", "<<"), ("=", "="), (".inf", float("inf")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_plain_scalars(text: str, value: Any) -> None:
    for got in (scalar(text), yaml.load(f"a: {text}", Loader=Loader)["a"]):
        assert got == value and type(got) is type(value)


@pytest.mark.parametrize("text", [text for text, _ in VALUES])
def test_texts_stay_texts_in_this_yaml_and_in_yaml_1_1(text: str) -> None:
    assert yaml.load(dump({"a": [text]}), Loader=Loader) == {"a": [text]} == yaml.safe_load(dump({"a": [text]}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"batch:\n  size: [4\n",
         "c.yaml, line 3, column 1: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        (b"batch:\n\tsize: 4\n",
         "c.yaml, line 2, column 1: not valid YAML: found character '\\t' that cannot start any token"),
        (b"a: 1\nb: \x01\n", "c.yaml, line 2: not valid YAML: special characters are not allowed"),
        (b"a: 1\nb: \xff\n", "c.yaml, line 2: not a text in UTF-8"),
        (b"a: !!python/name:os.system x\n",
         "c.yaml, line 1, column 4: not valid YAML: could not determine a constructor"),
        (b"- 1\n", "c.yaml: must hold sections such as 'batch:', each with its keys below it"),
    ],
)  # fmt: skip
def test_broken_files_are_one_line_with_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(path)
    text = str(caught.value).replace(f"{tmp_path}/", "")
    assert text.startswith(message) and "\n" not in text


def test_line_breaks_of_every_kind_are_read_back() -> None:
    tree = {"a": "x\x85", "b": "\u2028y", "c": "1\n 2\r\n", "d": "\ufeffz", "e": "ü — 語"}
    assert yaml.load(dump(tree), Loader=Loader) == tree


def test_repeated_keys_are_found_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("batch:\n  size: 1\n  size: 2\noptim: {lr: 1}\nbatch: {}\n")
    assert read(path)[1] == [
        f"{path}, line 3: batch.size: stands here a second time",
        f"{path}, line 5: batch: stands here a second time",
    ]


def test_empty_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for content, tree in ((b"", {}), (b"# nothing\n", {}), (b"\xef\xbb\xbfa: {b: 1}\r\n", {"a": {"b": 1}})):
        path.write_bytes(content)
        assert read(path) == (tree, [])

"""The YAML that configurations are written in: scalars as in YAML 1.2, duplicate keys an error.

PyYAML speaks YAML 1.1, in which 5e-5 is a text and `precision: no` a boolean. Here numbers with an exponent are
numbers, and only true and false are booleans.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from isostep.errors import ConfigError

TAG = "tag:yaml.org,2002:"
# The core schema of YAML 1.2, section 10.3.2: pattern and first characters of each plain scalar that is no text.
SCALARS = {
    "null": (re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
    "bool": (re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    "int": (re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), list("-+0123456789")),
    "float": (
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
}


def scalar(text: str) -> Any:
    """The value of a plain scalar: None, bool, int, float, or the text itself."""
    if SCALARS["null"][0].match(text):
        return None
    if SCALARS["bool"][0].match(text):
        return text.lower() == "true"
    if SCALARS["int"][0].match(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if SCALARS["float"][0].match(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


class Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2."""


Loader.yaml_implicit_resolvers = {}  # without those of YAML 1.1


class Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would not read as a text; lists on one line."""


def _construct(loader: Loader, node: yaml.ScalarNode) -> Any:
    return scalar(str(loader.construct_scalar(node)))


for _name, (_pattern, _first) in SCALARS.items():
    Loader.add_implicit_resolver(TAG + _name, _pattern, _first)
    Loader.add_constructor(TAG + _name, _construct)
    Dumper.add_implicit_resolver(TAG + _name, _pattern, _first)


def _represent(dumper: Dumper, text: str) -> yaml.ScalarNode:
    """Escapes what is not printable: PyYAML reads line breaks such as U+0085 back as another text."""
    return dumper.represent_scalar(TAG + "str", text, style=None if text.isprintable() else '"')


Dumper.add_representer(str, _represent)
Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence(TAG + "seq", value, flow_style=True))


def dump(tree: dict[str, Any]) -> str:
    """YAML text of nested dicts, keys in their order."""
    return yaml.dump(tree, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=2**16)


def flow_list(text: str) -> list[Any] | None:
    """The list written as `[a, b]`, or None where the text is no such list."""
    if not text.startswith("["):
        return None
    try:
        value = yaml.load(text, Loader=Loader)
    except yaml.YAMLError:
        return None
    return value if isinstance(value, list) else None


def read(path: str | Path) -> tuple[dict[Any, Any], list[str]]:
    """The mapping in a YAML file, and a line for each key that stands in it twice.

    Raises ConfigError, one line with file, line and column, if the file is missing or no YAML mapping.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: the config file can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: not a text in UTF-8") from error
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        value = loader.construct_document(node) if node is not None else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{path}{where}: not valid YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{path}, line {line}: not valid YAML: {error.reason}") from error
    if value is None:
        return {}, []
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold sections such as 'batch:', each with its keys below it")
    return value, [f"{path}, line {line}: {key}: stands here a second time" for key, line in _repeated(node)]


def _repeated(node: yaml.Node | None, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Dotted name and line of each repeated key, sections and their keys: nothing is nested deeper."""
    seen = set()
    assert isinstance(node, yaml.MappingNode)
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        if name in seen:
            yield name, key.start_mark.line + 1
        seen.add(name)
        if isinstance(value, yaml.MappingNode) and not prefix:
            yield from _repeated(value, f"{name}.")

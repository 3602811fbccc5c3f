"""From files and flags to one Config, or to one report of everything that is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from isostep.config import flags
from isostep.config.checks import check
from isostep.config.foreign import hint
from isostep.config.keys import KEYS, SECTIONS, show
from isostep.config.schema import Config, HandedIn
from isostep.config.syntax import read
from isostep.errors import ConfigError

COMMAND_LINE = "command line"
LORA_LR = 2e-4


@dataclass
class Given:
    """What files and flags say, merged: values and where they came from by dotted key, and problems met on the way."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lora: bool = False
    whole: bool = True  # no file is missing or unreadable

    def put(self, source: str, name: str, value: Any) -> None:
        """Take one value, which wins over an earlier one; an unknown name becomes a problem."""
        if name == "lora" and (value is None or value == {}):
            self.lora = value is not None
            self.sources[name] = source
            if value is None:
                self.values = {key: kept for key, kept in self.values.items() if not key.startswith("lora.")}
        elif name in SECTIONS:
            self.problems.append(f"{source}: {name}: must be a section with keys below it (got {show(value)})")
        elif name not in KEYS:
            self.refuse(source, name, value)
        elif value is None and KEYS[name].null_is_default:
            self.values.pop(name, None)
            self.sources[name] = source
        else:
            self.values[name] = value
            self.sources[name] = source
            if name.startswith("lora."):
                self.lora = True
                self.sources["lora"] = source

    def refuse(self, source: str, name: str, value: Any) -> None:
        """Report a name that is no key here."""
        answer = hint(name)
        self.problems.append(f"{source}: {name}: unknown key (got {show(value)})" + (f"; {answer}" if answer else ""))

    def tree(self, without: set[str]) -> dict[str, Any]:
        """Nested as the schema is, leaving out the keys in `without`; what is needed then gets a stand-in."""
        nested: dict[str, Any] = {section: {} for section in SECTIONS if section != "lora" or self.lora}
        for name, value in self.values.items():
            section, _, leaf = name.partition(".")
            if name not in without:
                nested[section][leaf] = value
        if "model.path" in without:
            nested["model"]["path"] = "stand-in"
        return nested


def load(paths: Sequence[str | Path], overrides: Sequence[str], handed_in: Collection[HandedIn]) -> Config:
    """See Config.load."""
    line = flags.split(overrides) if overrides else flags.CommandLine([], False, {})
    return resolve([*paths, *line.files], line.settings, handed_in)


def resolve(
    paths: Sequence[str | Path], settings: Mapping[str, Sequence[str]], handed_in: Collection[HandedIn] = ()
) -> Config:
    """The Config of `paths` and of the command line's `settings`. Raises ConfigError, one line for each problem."""
    given = Given()
    for path in paths:
        _take_file(given, path)
    _take_flags(given, settings)
    _infer(given, paths)
    config = _validate(given, str(paths[-1]) if paths else COMMAND_LINE, handed_in)
    if given.problems:
        raise ConfigError("\n".join(given.problems))
    return config


def _take_file(given: Given, path: str | Path) -> None:
    try:
        tree, repeated = read(path)
    except ConfigError as error:
        given.problems.append(str(error))
        given.whole = False
        return
    given.problems += repeated
    for section, content in tree.items():
        if section not in SECTIONS:
            given.refuse(str(path), str(section), content)
        elif not isinstance(content, dict):
            if content is not None or section == "lora":  # a section without keys is empty, but lora: null means off
                given.put(str(path), section, content)
        else:
            if section == "lora":
                given.put(str(path), section, {})
            for leaf, value in content.items():
                given.put(str(path), f"{section}.{leaf}", value)


def _take_flags(given: Given, settings: Mapping[str, Sequence[str]]) -> None:
    for name, texts in settings.items():
        if name == "":
            given.problems.append(f"{COMMAND_LINE}: {show(' '.join(texts))} follows no flag; write --section.key value")
        elif name == "config":
            given.problems.append(f"{COMMAND_LINE}: --config needs a file")
        elif name == "print_config":
            given.problems.append(f"{COMMAND_LINE}: --print-config takes no value (got {show(' '.join(texts))})")
        elif name == "lora" and list(texts) in ([text] for text in flags.NULLS):
            given.put(COMMAND_LINE, name, None)
        elif name not in KEYS:
            given.put(COMMAND_LINE, name, " ".join(texts))
        else:
            try:
                given.put(COMMAND_LINE, name, flags.value(KEYS[name], texts))
            except ValueError as error:
                given.problems.append(f"{COMMAND_LINE}: {name}: {error}")


def _infer(given: Given, paths: Sequence[str | Path]) -> None:
    """Fill in the keys whose null is decided by others."""
    if "run.name" not in given.values and paths:
        given.values["run.name"] = Path(paths[-1]).stem
        given.sources.setdefault("run.name", str(paths[-1]))
    if given.lora:
        given.values.setdefault("optim.lr", LORA_LR)


@cache
def _adapter() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def _validate(given: Given, fallback: str, handed_in: Collection[HandedIn]) -> Config:
    """The Config; where `given.problems` is not empty afterwards, it is no good.

    Keys with a value of the wrong type are reported and left out, so that the rest can still be checked together. Where
    a file could not be read, nothing is said about what may stand in it.
    """
    wrong: set[str] = set()

    def report(key: str, text: str) -> None:
        given.problems.append(f"{given.sources.get(key, fallback)}: {key}: {text}")

    try:
        config = _adapter().validate_python(given.tree(wrong))
    except ValidationError as error:
        wrong = {".".join(str(part) for part in found["loc"][:2]) for found in error.errors(include_url=False)}
        for name in sorted(wrong, key=list(KEYS).index):
            if name in given.values or given.whole:
                report(name, _rule_broken(name, given))
        config = _adapter().validate_python(given.tree(wrong))
    for problem in check(config, handed_in) if given.whole else ():
        if not wrong & {problem.key, *problem.involves}:
            report(problem.key, problem.text)
    return config


def _rule_broken(name: str, given: Given) -> str:
    key = KEYS[name]
    if name not in given.values:
        return "is needed: a hub id, a local folder or builtin:tiny"
    value = given.values[name]
    text = f"must be {key.rule} (got {show(value)})"
    if isinstance(value, str) and (near := difflib.get_close_matches(value.lower(), key.choices, n=1)):
        text += f"; did you mean {near[0]}?"
    return text

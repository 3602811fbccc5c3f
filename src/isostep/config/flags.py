"""The command line, taken apart: which files, which keys with which texts. tyro parses it and writes --help.

tyro sees a mirror of the schema whose values are all texts. What they mean and whether they are right is decided where
the files' values are, so that one report holds all problems.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Sequence
from typing import Annotated, Any

from isostep.config.keys import KEYS, SECTIONS, Key, docs
from isostep.config.syntax import flow_list, scalar

ABSENT = ("\0",)  # no argument of a process can hold this character
NULLS = ("null", "None")


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """`settings`: flag without dashes, known or not, to the texts that followed it."""

    files: list[str]
    print_config: bool
    settings: dict[str, list[str]]


def _mirror() -> type:
    import tyro

    def leaf(text: str, metavar: str, default: str) -> Any:
        return Annotated[
            tuple[str, ...], tyro.conf.arg(help=text, metavar=metavar, help_behavior_hint=f"(default: {default})")
        ]

    sections: list[Any] = []
    for section, kind in SECTIONS.items():
        fields = [
            (name.rpartition(".")[2], leaf(docs()[name], key.metavar, key.default), dataclasses.field(default=ABSENT))
            for name, key in KEYS.items()
            if name.startswith(f"{section}.")
        ]
        made = dataclasses.make_dataclass(section, fields, kw_only=True)
        made.__doc__ = kind.__doc__
        sections.append((section, made, dataclasses.field(default_factory=made)))
    repeated = tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]]
    files = tyro.conf.arg(
        help="YAML file; may be given several times, later ones win.", metavar="FILE", help_behavior_hint=""
    )
    shown = tyro.conf.arg(help="Print the resolved YAML and do nothing.", metavar="", help_behavior_hint="")
    own: list[Any] = [
        ("config", Annotated[repeated, files], dataclasses.field(default=())),
        ("print_config", Annotated[tuple[str, ...], shown], dataclasses.field(default=ABSENT)),
    ]
    return dataclasses.make_dataclass("Arguments", [*own, *sections], kw_only=True)


def split(argv: Sequence[str], prog: str = "train.py", show_help: bool = True) -> CommandLine:
    """Take `argv` apart. `--help` prints (if `show_help`) and raises SystemExit(0)."""
    import tyro

    with contextlib.ExitStack() as stack:
        if not show_help:
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        parsed: Any
        parsed, rest = tyro.cli(
            _mirror(),
            prog=prog,
            args=list(argv),
            return_unknown_args=True,
            use_underscores=True,
            description="Keys by section; those given here win over the files. In flags, - and _ are the same.",
        )
    settings = _unknown(rest)
    for name in KEYS:
        section, _, leaf = name.partition(".")
        texts = getattr(getattr(parsed, section), leaf)
        if texts != ABSENT:
            settings[name] = list(texts)
    if () in parsed.config:
        settings["config"] = []
    if parsed.print_config not in (ABSENT, ()):
        settings["print_config"] = list(parsed.print_config)
    return CommandLine([file for files in parsed.config for file in files], parsed.print_config != ABSENT, settings)


def _unknown(rest: Sequence[str]) -> dict[str, list[str]]:
    """Arguments that tyro did not know, grouped: a flag and the values after it; values without a flag under ""."""
    found: dict[str, list[str]] = {}
    name = ""
    for token in rest:
        if re.match(r"--?[A-Za-z]", token):
            name, equals, value = token.lstrip("-").partition("=")
            found[name] = [value] if equals else []
        else:
            found.setdefault(name, []).append(token)
    return found


def value(key: Key, texts: Sequence[str]) -> Any:
    """What the texts after a key's flag mean, by the key's type. Raises ValueError with the rule that was broken.

    Keys that hold texts take them as they are: `--run.name 2024` is a text, and `--data.text "#1 String"` no comment.
    """
    if not texts:
        raise ValueError(f"needs a value: {key.rule}")
    if len(texts) == 1 and texts[0] in NULLS:
        return None
    if not key.many and len(texts) > 1:
        raise ValueError(f"takes one value, {key.rule} (got {' '.join(texts)})")
    if key.many and len(texts) == 1 and (listed := flow_list(texts[0])) is not None:
        return listed
    values = list(texts) if key.verbatim else [scalar(text) for text in texts]
    return values[0] if len(values) == 1 and key.one else values

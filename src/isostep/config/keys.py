"""The table of all keys, made from the schema: what each expects, in words, and how the command line takes it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import types
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from isostep.config import schema
from isostep.config.schema import Config, Inferred, Lora

NUMBERS = {int: ("a whole number", "INT"), float: ("a number", "NUMBER")}
BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """One key: `name` is dotted; `expects` and `metavar` describe its type, null aside."""

    name: str
    expects: str
    metavar: str
    choices: tuple[str, ...]
    default: str
    nullable: bool
    null_is_default: bool  # null means: as if the key were absent
    many: bool  # takes a list
    one: bool  # takes a single value
    verbatim: bool  # every value is a text, so nothing on the command line is read as a number

    @property
    def rule(self) -> str:
        """What a value must be, for an error message."""
        return self.expects + (" or null" if self.nullable or (self.null_is_default and not self.many) else "")


def _section_types() -> dict[str, type]:
    hints = get_type_hints(Config)
    return {f.name: Lora if f.name == "lora" else hints[f.name] for f in dataclasses.fields(Config)}


SECTIONS = _section_types()


def _members(annotation: Any) -> list[Any]:
    """The members of a union, nested ones too, Annotated stripped where it only carries Inferred."""
    if get_origin(annotation) in (Union, types.UnionType):
        return [leaf for member in get_args(annotation) for leaf in _members(member)]
    return [annotation]


def _metadata(annotation: Any) -> tuple[Any, list[Any]]:
    """Bare type, and the single constraints on it."""
    if get_origin(annotation) is not Annotated:
        return annotation, []
    base, *extra = get_args(annotation)
    return base, [item for field in extra for item in getattr(field, "metadata", [field])]


def _describe(annotation: Any) -> tuple[str, str, tuple[str, ...]]:
    """In words, as a placeholder, and the choices, if any."""
    base, constraints = _metadata(annotation)
    if base in NUMBERS:
        words, placeholder = NUMBERS[base]
        bounds = [f"{sign} {getattr(c, at)}" for c in constraints for at, sign in BOUNDS.items() if hasattr(c, at)]
        return " ".join([words, " and ".join(bounds)]).strip(), placeholder, ()
    if base is bool:
        return "true or false", "true|false", ("true", "false")
    if base is str:
        return "a text", "TEXT", ()
    if get_origin(base) is Literal:
        choices = get_args(base)
        return ("one of " if len(choices) > 1 else "") + ", ".join(choices), "|".join(choices), choices
    if get_origin(base) is dict:
        return "texts by name (of letters, digits, _ and -)", "", ()
    items = get_args(base)
    words, placeholder, _ = _describe(items[0])
    if items[-1] is Ellipsis:
        return "a list of texts", f"{placeholder} ...", ()
    return f"a list of {len(items)} items, each {words}", " ".join([placeholder] * len(items)), ()


def _key(section: str, field: dataclasses.Field[Any], annotation: Any) -> Key:
    members = _members(annotation)
    kinds = [member for member in members if member is not type(None)]
    bare = [_metadata(kind)[0] for kind in kinds]
    described = [_describe(kind) for kind in kinds]
    placeholders = [placeholder for _, placeholder, _ in described if placeholder] + ["null"] * (type(None) in members)
    inferred = [c for kind in kinds for c in _metadata(kind)[1] if isinstance(c, Inferred)]
    default = field.default
    shown = inferred[0].how if inferred else "needed" if default is dataclasses.MISSING else show(default)
    lists = [get_origin(base) is tuple for base in bare]
    bare = [base for base in bare if get_origin(base) is not dict]  # which the command line can't say
    texts = [base is str or get_origin(base) is Literal or base == tuple[schema.Text, ...] for base in bare]
    return Key(
        name=f"{section}.{field.name}",
        expects=" or ".join(words for words, _, _ in described),
        metavar="|".join(placeholders),
        choices=tuple(choice for _, _, choices in described for choice in choices),
        default=shown.strip('"'),
        nullable=type(None) in members,
        null_is_default=bool(inferred) or default == (),
        many=any(lists),
        one=not all(lists),
        verbatim=all(texts),
    )


def show(value: Any) -> str:
    """A value as YAML would write it, cut to one short line."""
    if value is None or isinstance(value, (bool, int, float, str)):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, (tuple, list)) and all(isinstance(item, (bool, int, float, str)) for item in value):
        text = json.dumps(list(value), ensure_ascii=False)
    else:
        text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


KEYS = {
    key.name: key
    for section, kind in SECTIONS.items()
    for field in dataclasses.fields(kind)
    for key in [_key(section, field, get_type_hints(kind, include_extras=True)[field.name])]
}


@cache
def docs() -> dict[str, str]:
    """The text under each field of the schema, by dotted key; read from the source, only for --help."""
    names = {kind.__name__: section for section, kind in SECTIONS.items()}
    found = {}
    for node in ast.parse(inspect.getsource(schema)).body:
        if isinstance(node, ast.ClassDef) and node.name in names:
            for statement, after in pairwise(node.body):
                if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
                    assert isinstance(statement.target, ast.Name) and isinstance(after.value, ast.Constant)
                    found[f"{names[node.name]}.{statement.target.id}"] = str(after.value.value)
    return found

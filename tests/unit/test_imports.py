"""Which module may import which, read from the syntax trees: nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "isostep"
# A part may import its own layer's parts and those above it in this list.
LAYERS = [
    {"config", "durable", "early", "errors", "state"},
    {"data", "models", "tasks", "optim"},
    {"train", "checkpoint", "track", "report"},
    {"cli", "__init__", "__main__"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
ONLY_IN = {"wandb": "track", "peft": "models", "bitsandbytes": "models"}
HEAVY = {"torch", "transformers", "datasets", "accelerate", "numpy", "sklearn", "pyarrow", "tokenizers", "safetensors"}
LIGHT = [
    *sorted((SOURCE / "config").glob("*.py")),
    SOURCE / "early.py",
    SOURCE / "errors.py",
    SOURCE / "__main__.py",
    SOURCE / "cli" / "main.py",
]
FILES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Dotted module of each import, and whether it runs when the file is imported (type checking aside)."""

    def walk(node: ast.AST, runs: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            inner = runs and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.Import):
                yield from ((alias.name, runs) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0 and child.module, f"{path}: relative import in line {child.lineno}"
                yield child.module, runs
                if child.module == "isostep":
                    yield from ((f"isostep.{alias.name}", runs) for alias in child.names)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                yield from ((name, False) for part in child.body for name, _ in walk(ast.Module([part], []), False))
                for part in child.orelse:
                    yield from walk(ast.Module([part], []), inner)
            else:
                yield from walk(child, inner)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


def part_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    here = part_of(path)
    assert here in LEVEL, f"{here} has no layer yet"
    for name, _ in imports(path):
        if name.startswith("isostep."):
            there = name.split(".")[1]
            if there in LEVEL:
                assert LEVEL[there] <= LEVEL[here], f"{path}: {here} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_some_libraries_have_one_home(path: Path) -> None:
    for name, runs in imports(path):
        top = name.partition(".")[0]
        if top in ONLY_IN:
            assert part_of(path) == ONLY_IN[top], f"{path} imports {top}"
            assert not runs, f"{path} imports {top} whether it is used or not"


@pytest.mark.parametrize("path", [*LIGHT, SOURCE / "__init__.py"], ids=lambda path: str(path.relative_to(SOURCE)))
def test_help_can_be_shown_without_heavy_imports(path: Path) -> None:
    for name, runs in imports(path):
        assert not runs or name.partition(".")[0] not in HEAVY, f"{path} imports {name}"
        light = {"config", "errors", "state", "cli"}
        assert not runs or not name.startswith("isostep.") or name.split(".")[1] in light, f"{path} imports {name}"


def test_the_walk_sees_what_it_must(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(
        "import a.b\nfrom c import d\n"
        "if TYPE_CHECKING:\n    import e\ntry:\n    import f\nexcept ImportError:\n    pass\n"
        "def g():\n    from h import i\nclass J:\n    import k\n"
    )
    seen = sorted(imports(path))
    assert seen == [("a.b", True), ("c", True), ("e", False), ("f", True), ("h", False), ("k", True)]

"""Imports point one way: a subpackage imports only the subpackages before it.

Read from the syntax tree, so that imports inside functions, under TYPE_CHECKING and by `from robattr import subpackage`
count as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "robattr"
ORDER = (
    "errors", "formula", "objectives", "engine", "data", "models", "metrics", "attacks", "training", "recipes",
    "evaluation", "runs", "certificates", "reporting", "auditing", "integrations", "reproduce", "cli", "robattr",
)  # fmt: skip
SAME_SUBPACKAGE = {
    "_form": "errors", "_progress": "errors", "_text": "errors", "_extras": "errors", "_lazy": "errors",
    "_version": "errors",
    "__init__": "robattr", "__main__": "robattr",
}  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def subpackage_of(module: str) -> str:
    """The subpackage of a dotted module; names that only robattr/__init__.py has belong to the last one, `robattr`."""
    first = module.split(".")[1] if "." in module else "__init__"
    return SAME_SUBPACKAGE.get(first, first if first in ORDER else "robattr")


def imported(source: str, package: str) -> Iterator[str]:
    """Every module that the source imports, as a dotted name; `package` is what a relative import starts from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names) if base == "robattr" else (base,)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def upward(file: Path, source: str) -> list[str]:
    """The imports of a file that lead to a subpackage after its own."""
    package = ".".join(["robattr", *file.relative_to(PACKAGE).parts[:-1]])
    own = ORDER.index(subpackage_of(".".join(["robattr", *file.relative_to(PACKAGE).with_suffix("").parts])))
    targets = (name for name in imported(source, package) if name.split(".")[0] == "robattr")
    return sorted({name for name in targets if ORDER.index(subpackage_of(name)) > own})


def test_imports_point_one_way() -> None:
    wrong = {str(file.relative_to(PACKAGE)): upward(file, file.read_text(encoding="utf-8")) for file in FILES}
    assert {file: names for file, names in wrong.items() if names} == {}


def test_every_file_is_in_a_known_subpackage() -> None:
    found = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in FILES}
    assert found <= {*ORDER, *SAME_SUBPACKAGE}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from robattr.training.loop import train", ["robattr.training.loop"]),
        ("def f():\n    from robattr import reporting", ["robattr.reporting"]),
        ("import robattr.cli", ["robattr.cli"]),
        ("import robattr", ["robattr"]),
        ("from robattr import LinfBall", ["robattr.LinfBall"]),
        ("from .. import evaluation", ["robattr.evaluation"]),
        ("from ..runs import open_run", ["robattr.runs"]),
        ("importlib.import_module('robattr.auditing')", ["robattr.auditing"]),
        ("from robattr.formula import IG\nfrom . import mnist\nimport torch", []),
    ],
)
def test_an_upward_import_is_found(line: str, found: list[str]) -> None:
    assert upward(PACKAGE / "data" / "catalog.py", line) == found

"""Packages whose names are imported at their first use, and the commands that never load torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import robattr
from fake_runs import write_run

PACKAGES = ("data", "engine", "evaluation", "metrics", "reporting", "training")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_offers_the_names_that_type_checkers_see(name: str) -> None:
    package = import_module(f"robattr.{name}")
    nodes = ast.walk(ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8")))
    typed = {
        (alias.name, node.module)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "robattr._lazy")
        for alias in node.names
    }
    assert {public for public, _ in typed} == package._modules.keys() <= set(dir(package))
    for public, module in typed:
        assert getattr(package, public) is getattr(import_module(str(module)), public)


def test_a_function_is_not_hidden_by_the_module_of_its_name() -> None:
    said = _python(
        "import sys, robattr.metrics.kendall, robattr.training.sweep\n"
        "from robattr.metrics import kendall\n"
        "from robattr.training import sweep\n"
        "print(type(kendall).__name__, type(sweep).__name__, type(sys.modules['robattr.metrics.kendall']).__name__)"
    )
    assert said.split() == ["function", "function", "module"]


def test_other_names_are_modules_or_errors() -> None:
    assert isinstance(robattr.metrics.intervals, ModuleType)
    with pytest.raises(AttributeError, match=r"module 'robattr.metrics' has no attribute 'nonsense'"):
        robattr.metrics.nonsense  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from robattr.metrics import nonsense")


@pytest.mark.parametrize("words", [["compare", "natural", "madry"], ["report", "natural", "madry"]], ids=lambda w: w[0])
def test_a_command_that_reads_records_does_without_torch(tmp_path: Path, words: list[str]) -> None:
    for method in ("natural", "madry"):
        run = write_run(tmp_path, method)
        (run / "records" / "paper-ig.settings").write_text('{"settings": {"eps": 0.1}}')
    blocked = f"import sys\nsys.modules['torch'] = None\nsys.argv[1:] = {words}\n"
    _python(f"{blocked}from robattr.cli import run\nrun()", tmp_path)


def _python(code: str, place: Path | None = None) -> str:
    """What a new Python prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

"""Networks by name: those of the datasets, and a user's own functions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from robattr.errors import InvalidInput, UnsupportedModel
from robattr.models import (
    from_factory,
    small_cnn,
)

FACTORIES = """
import torch
from torch import nn
def make(): return nn.Linear(2, 3)
def with_default(n=4, *args, **kwargs): return nn.Linear(2, n)
class Net(nn.Module):
    @staticmethod
    def tiny(): return nn.Linear(2, 1)
ready = nn.Linear(2, 5)
number = 3
def wants(depth, *, width): return nn.Linear(depth, width)
def wrong(): return "a string"
def fails(): raise OSError("disk on fire")
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory, importable from nowhere else."""
    name = "factories_of_the_user"
    (tmp_path / f"{name}.py").write_text(FACTORIES)
    (tmp_path / "factories_broken.py").write_text("import a_package_nobody_has\n")
    (tmp_path / "factories_syntax.py").write_text("def make(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


@pytest.mark.parametrize(("what", "out"), [("make", 3), ("with_default", 4), ("Net.tiny", 1), ("ready", 5)])
def test_factories(what: str, out: int, nets: str) -> None:
    path = list(sys.path)
    assert from_factory(f"{nets}:{what}").out_features == out
    assert sys.path == path
    assert type(from_factory(f"{nets}:Net")).__name__ == "Net"
    assert from_factory("robattr.models:small_cnn").spec == small_cnn().spec


def test_a_file_for_a_module_is_told_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_nets.py").write_text("raise SystemExit('its code runs')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="got a file: write my_nets:make"):
        from_factory("my_nets.py:make")


@pytest.mark.parametrize(
    ("ref", "error", "words"),
    [
        ("no_colon", InvalidInput, "package.module:factory"),
        ("a:b:c", InvalidInput, "package.module:factory"),
        ("path/to.py:make", InvalidInput, "package.module:factory"),
        (":make", InvalidInput, "package.module:factory"),
        ("a_module_nobody_has:make", InvalidInput, "No module named 'a_module_nobody_has': run the command in"),
        ("robattr.modells:make", InvalidInput, "No module named 'robattr.modells'"),
        ("factories_broken:make", InvalidInput, "importing 'factories_broken' failed: .*'a_package_nobody_has'"),
        ("factories_syntax:make", InvalidInput, "SyntaxError"),
        ("{nets}:mak", InvalidInput, "did you mean 'make'"),
        ("{nets}:number", UnsupportedModel, "'int' object is not callable"),
        ("{nets}:wants", UnsupportedModel, "missing .* 'depth'"),
        ("{nets}:wrong", UnsupportedModel, "got str"),
        ("{nets}:fails", UnsupportedModel, "OSError: disk on fire"),
    ],
)
def test_factories_that_fail_say_why(ref: str, error: type[Exception], words: str, nets: str) -> None:
    with pytest.raises(error, match=words):
        from_factory(ref.format(nets=nets))

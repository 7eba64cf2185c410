"""Every script in examples/ runs, with two steps and small audits."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import robattr

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
SAYS = {
    "own_loop": "step 1: loss",
    "captum_maps": "captum-Saliency: Kendall",
    "tabular": "IG-NORM: accuracy",
    "token_embeddings": "rank correlation of the words",
    "audit_own_model": "wrote audit.html",
    "harden_on_fashion_mini": "after: ",
}


def smaller(call: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return lambda *args, **given: call(*args, **{**given, **settings})


@pytest.mark.parametrize("script", [e for e in EXAMPLES if e.stem in SAYS], ids=lambda e: e.stem)
def test_an_example_runs(script: Path, tmp_path, monkeypatch, capsys, short_search, undrawn) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(robattr, "audit", smaller(robattr.audit, examples=16, steps=1, points=2))
    monkeypatch.setattr(robattr, "harden", smaller(robattr.harden, examples=16, audit_steps=1, points=2, batch=8))
    monkeypatch.setattr(sys, "argv", [str(script), "2"])
    runpy.run_path(str(script), run_name="__main__")
    assert SAYS[script.stem] in capsys.readouterr().out


def test_every_example_is_tested() -> None:
    assert {e.stem for e in EXAMPLES} == {*SAYS, "audit_timm"}


def test_the_timm_example_says_when_timm_is_missing(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    script = next(e for e in EXAMPLES if e.stem == "audit_timm")
    monkeypatch.setattr(sys, "argv", [str(script)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert "pip install timm" in capsys.readouterr().out

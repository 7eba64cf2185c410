"""Audits in these tests use a short random search: its length is tested with the evaluation's diagnostics."""

from __future__ import annotations

from functools import partial

import pytest

from robattr.evaluation import diagnostics


@pytest.fixture(autouse=True)
def _short_search(monkeypatch) -> None:
    monkeypatch.setattr(diagnostics, "random_search", partial(diagnostics.random_search, queries=5))

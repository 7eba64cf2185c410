"""Fixtures of the evaluation tests."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from evaluation_fixtures import IG, TOY, toy_case
from robattr.evaluation import Evaluation, evaluate


@pytest.fixture(scope="session")
def case() -> tuple[nn.Module, Tensor, Tensor]:
    return toy_case()


@pytest.fixture(scope="session")
def plain(case) -> Evaluation:
    """An evaluation of the toy network that writes nothing."""
    return evaluate(*case, protocol=TOY, map=IG)


@pytest.fixture
def quick_diagnostics(monkeypatch) -> None:
    """Fewer queries and radii, for tests that do not look at the diagnostics."""
    monkeypatch.setattr("robattr.evaluation.diagnostics.QUERIES", 3)
    monkeypatch.setattr("robattr.evaluation.diagnostics.RADII", (1.0,))

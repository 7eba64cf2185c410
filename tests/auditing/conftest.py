"""Audits in these tests use a short random search, and pages without drawings."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quick(short_search, undrawn) -> None:
    pass

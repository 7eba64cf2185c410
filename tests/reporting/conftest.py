"""Runs with invented numbers, made once for the whole folder; tests that change one write their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_runs import METHODS, write_run
from robattr.reporting import read_runs, write_records


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One evaluated run directory of each method."""
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root, method, steps=4) for method in METHODS]


@pytest.fixture(scope="session")
def records(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the records of `runs`."""
    folder = tmp_path_factory.mktemp("records")
    write_records(read_runs(runs), folder)
    return folder

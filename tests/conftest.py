"""Every test starts from the same random state, and none is judged by the clock."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Sequence
from functools import cache
from html import escape

import pytest
import torch
import typer.testing
from hypothesis import settings

from evaluation_fixtures import shorten_search
from robattr.evaluation import cost
from robattr.reporting.curves import Panel
from robattr.reporting.groups import Group
from robattr.training import run_directory

gc.disable()  # until all tests are collected: the search for cycles was a quarter of that time
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it: output that is not a terminal has no width
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, and its children would
cost.RUNS = 1  # no test reads the clock, so none needs the fastest of many runs
if not torch.cuda.is_available():  # torch's own writes a stack trace for every kind of device that is not there
    torch.manual_seed = torch.default_generator.manual_seed
run_directory._git_state = cache(run_directory._git_state)  # two processes for every run
typer.testing._get_command = cache(typer.main.get_command)  # built anew at every call, in a tenth of a second


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process per core and at least four: on few cores a third of the time is waiting for other processes."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(asked) if asked else max(cores, 4)


def pytest_collection_finish() -> None:
    gc.enable()
    gc.freeze()  # no later search looks at modules again


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_search(monkeypatch)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts with their titles alone: matplotlib takes a second to draw those of a page, as tests/reporting does."""
    for module in ("html", "audit_sections"):
        monkeypatch.setattr(f"robattr.reporting.{module}.inline_svg", _title)
    monkeypatch.setattr("robattr.reporting.html.boxes", _any_score)
    monkeypatch.setattr("robattr.reporting.html.lines", _any_curve)


def _any_score(group: Group, keys: Sequence[str]) -> bool:
    return any(all(e.scores(key) for key in keys) for _, e in group.members)


def _any_curve(panels: Sequence[Panel], *, x_label: str) -> bool:
    return any(max(s.ys) > 0 or not panel.log for panel in panels for s in panel.series)


def _title(figure: object, *, name: str) -> str:
    return f'<svg class="chart" role="img" aria-label="{escape(name)}"></svg>'

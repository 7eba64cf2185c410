"""Progress on stderr: a bar on a terminal, lines elsewhere, what was done before, and how long it will take."""

from __future__ import annotations

import time

import pytest

from robattr import _progress
from robattr._progress import Progress, Watching


class Clock:
    """Stands in for `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("robattr._progress.time.monotonic", made)
    return made


def test_what_was_done_before_is_said(capsys) -> None:
    with Progress("paper ig", "examples") as progress:
        progress(40, 100)
    assert capsys.readouterr().err == "paper ig: continuing after 40 of 100 examples (--fresh begins anew)\n"
    with Progress("paper ig", "examples") as progress:
        progress(100, 100)
        progress(100, 100)
    assert capsys.readouterr().err == "paper ig: all 100 examples were done before (--fresh begins anew)\n"


def test_the_time_left_comes_from_the_speed_after_the_first_step(clock: Clock, capsys) -> None:
    with Progress("run", "steps") as progress:
        progress(0, 1000)
        clock.now = 90.0  # compilation
        progress(1, 1000)
        assert progress.left is None
        clock.now = 92.0
        progress(3, 1000)
        assert progress.left == pytest.approx(997.0)
        clock.now = 93.0
        assert progress.left == pytest.approx(996.0)
    assert capsys.readouterr().err == "run: about 18 min for 1,000 steps\n"


def test_the_first_step_lowers_an_estimate_that_was_far_too_high(clock: Clock, capsys) -> None:
    with Progress("run", "steps") as progress:
        progress(0, 30)
        progress.expect(6 * 3600.0, "30 steps")
        clock.now = 90.0
        assert progress.left == pytest.approx(6 * 3600.0 - 90)
        progress(9, 30)
        assert progress.left == pytest.approx(90 / 9 * 21)
        progress.seconds = 100.0  # compilation is in the first step alone
        assert progress.left == pytest.approx(10.0)
    assert capsys.readouterr().err == "run: about 6.0 h for 30 steps\n"


def test_the_end_is_said_with_the_last_words(clock: Clock, capsys) -> None:
    with Progress("run", "steps") as progress:
        progress(0, 2)
        progress.words = "loss 0.5"
        clock.now = 3.0
        progress(2, 2)
    assert capsys.readouterr().err == "run: 2 of 2 steps, loss 0.5, in 3 s\n"


@pytest.mark.parametrize("dumb", [False, True])
def test_where_no_bar_can_be_drawn_a_line_comes_now_and_then(monkeypatch, capsys, dumb: bool) -> None:
    """In a log file, and on a terminal that cannot redraw a line (TERM=dumb), where rich would show nothing."""
    monkeypatch.setattr(_progress, "EVERY", 0.01)
    if dumb:
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setenv("TERM", "dumb")
    with Progress("run", "steps") as progress:
        progress.seconds = 3600.0
        progress(0, 10)
        deadline = time.monotonic() + 30
        said = ""
        while said.count("\n") < 2 and time.monotonic() < deadline:
            said += capsys.readouterr().err
    assert said.startswith("run: 0 of 10 steps, ")
    assert "about 60 min left" in said


def test_a_terminal_has_a_bar_and_lines_above_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns in ("100", "40"):
        monkeypatch.setenv("COLUMNS", columns)
        with Progress("[red]run", "steps") as progress:
            progress(0, 100)
            progress.words = "loss 0.5"
            progress(50, 100)
            progress.say("hello [bold]")
        said = capsys.readouterr().err
        assert "[red]run" in said
        assert "50/100" in said
        assert "hello [bold]" in said
        assert ("loss 0.5" in said) == (columns == "100")


def test_parts_are_estimated_when_they_begin(clock: Clock, capsys) -> None:
    with Watching() as watch:
        watch("paper ig", 0, 10)
        watch.expect("paper ig", 120.0, "10 examples")
        assert capsys.readouterr().err == "paper ig: about 2.0 min for 10 examples\n"
        clock.now = 5.0
        watch("paper ig", 10, 10)
        watch("strict ig", 10, 10)
        watch("certify ig", 990, 990, "noisy copies")
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "paper ig: 10 of 10 examples, in 5 s",
        "strict ig: all 10 examples were done before (--fresh begins anew)",
        "certify ig: all 990 noisy copies were done before (--fresh begins anew)",
    ]
    with Watching() as watch:
        watch("paper ig", 0, 10)
        watch.expect("paper ig", 2.0, "10 examples")
    assert capsys.readouterr().err == "", "a short task needs no estimate"


def test_an_interrupt_says_how_to_go_on(capsys) -> None:
    def interrupted(done: int) -> None:
        with Watching() as watch:
            watch("paper ig", 0, 10)
            watch("paper ig", done, 10)
            raise KeyboardInterrupt

    for done, kept in ((4, "what was measured is recorded: "), (0, "")):
        with pytest.raises(KeyboardInterrupt):
            interrupted(done)
        assert capsys.readouterr().err == f"stopped; {kept}the same command continues\n"


def test_another_process_than_the_leader_is_silent(capsys) -> None:
    with Watching(shown=False) as watch:
        watch("paper ig", 4, 10)
        watch.expect("paper ig", 1e4, "6 examples")
        watch("paper ig", 10, 10)
    assert capsys.readouterr().err == ""

"""How far a long task is, on stderr: a bar with the time left on a terminal, elsewhere a line now and then.

All commands show it by `Progress`, the training loop as well; those of several parts through `Watching`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from robattr._text import duration, printable

EVERY = 30.0  # seconds between two lines, at first
WINDOW = 120  # seconds whose speed the time left is computed from
LONG = 60.0  # seconds; an estimate below is not worth a line


class Watch(Protocol):
    """watch(title, done, total), called as each part of a command proceeds; `unit` is what is counted."""

    def __call__(self, title: str, done: int, total: int, unit: str = "examples") -> None: ...


class Progress:
    """`with Progress("paper ig", "examples") as progress: progress(done, total)`.

    The first call says how much was done before. `words`, such as the loss, stand beside the bar and in the lines.
    Lines become rarer with time.
    """

    def __init__(self, title: str, unit: str, *, shown: bool = True) -> None:
        self.title, self.unit, self._shown = title, unit, shown
        self.seconds: float | None = None
        """An estimate, used until the first speed is known."""
        self.done = self.total = 0
        self.words = ""
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._began = time.monotonic()
        self._first: int | None = None
        self._over = threading.Event()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` are done."""
        now = time.monotonic()
        self.done, self.total = done, total
        if self._first is None:
            self._begin(done, total, now)
        elif done > self._first and (not self._seen or now - self._seen[-1][0] >= 1):
            self._seen.append((now, done))  # from the first step on, which may have compiled
            self._announce()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, words=self.words)
        if done >= total and not self._over.is_set():
            self._over.set()
            if self._bar is not None:
                self._bar.stop()
            if done > (self._first or 0):
                self.say(self._line(f"in {duration(now - self._began)}"))

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if not self._shown:
            return
        if self._bar is not None and not self._over.is_set():
            self._bar.console.print(printable(text), highlight=False, markup=False, soft_wrap=True)
        else:
            say(text)

    @property
    def left(self) -> float | None:
        """Seconds left, from the speed of the last minutes; before there is one, from estimate and first step."""
        now = time.monotonic()
        if len(self._seen) > 1 and self._seen[-1][1] > self._seen[0][1]:
            (then, before), (last, done) = self._seen[0], self._seen[-1]
            each = (last - then) / (done - before)
            return max(0.0, each * (self.total - done) - (now - last))
        if self.seconds is None:
            return None
        ends = [self._began + self.seconds]
        if self._seen and self._first is not None:  # the first step may have compiled: the others are not slower
            then, done = self._seen[0]
            ends.append(then + (then - self._began) * (self.total - done) / (done - self._first))
        return max(0.0, min(ends) - now)

    def _begin(self, done: int, total: int, now: float) -> None:
        self._first, self._began = done, now
        if done >= total:
            self.say(f"{self.title}: all {total:,} {self.unit} were done before (--fresh begins anew)")
            self._over.set()
            return
        if done:
            self.say(f"{self.title}: continuing after {done:,} of {total:,} {self.unit} (--fresh begins anew)")
        if self._shown and sys.stderr.isatty():
            self._bar = _bar(self)
        if self._shown and self._bar is None:
            threading.Thread(target=self._speak, daemon=True).start()

    def _announce(self) -> None:
        """Say the first estimate, if there was none before."""
        if self.seconds is None and self.left is not None:
            left = self.total - (self._first or 0)
            self.expect(time.monotonic() - self._began + self.left, f"{left:,} {self.unit}")

    def expect(self, seconds: float, what: str) -> None:
        """Take an estimate of what is left, or of what follows, and say it if it is longer than a minute."""
        self.seconds = seconds
        if seconds >= LONG:
            self.say(f"{self.title}: about {duration(seconds)} for {what}")

    def _speak(self) -> None:
        """Print a line every EVERY seconds, later every tenth of the time that has passed."""
        while not self._over.wait(max(EVERY, min(600.0, (time.monotonic() - self._began) / 10))):
            left = self.left
            passed = duration(time.monotonic() - self._began)
            self.say(self._line(f"{passed}, about {duration(left)} left" if left else passed))

    def _line(self, end: str) -> str:
        return ", ".join(filter(None, [f"{self.title}: {self.done:,} of {self.total:,} {self.unit}", self.words, end]))


def silent(title: str, done: int, total: int, unit: str = "examples") -> None:
    """A `Watch` that shows nothing."""


class Watching:
    """Shows each part by a `Progress`: `with Watching() as watch: watch(title, done, total)`."""

    def __init__(self, *, shown: bool = True) -> None:
        self._shown = shown
        self._parts: dict[str, Progress] = {}

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for part in self._parts.values():
            part.__exit__()
        if kind is KeyboardInterrupt and self._shown:
            kept = "what was measured is recorded: " if any(part.done for part in self._parts.values()) else ""
            say(f"stopped; {kept}the same command continues")

    def expect(self, title: str, seconds: float, what: str) -> None:
        """Say how long `what` of a part that has begun will take, if it is longer than a minute."""
        self._part(title).expect(seconds, what)

    def __call__(self, title: str, done: int, total: int, unit: str = "examples") -> None:
        """Show how far the part is."""
        self._part(title, unit)(done, total)

    def _part(self, title: str, unit: str = "examples") -> Progress:
        return self._parts.setdefault(title, Progress(title, unit, shown=self._shown))


def expect(watch: Watch, title: str, seconds: Callable[[], float], what: str) -> None:
    """Give the estimate of a part that has begun to a `Watching`; a `watch` of the user's takes none."""
    if isinstance(watch, Watching):
        watch.expect(title, seconds(), what)


@dataclass
class Counter:
    """Adds up what it is told, and reports the sum: `count(more)` calls progress(done, total)."""

    progress: Callable[[int, int], None]
    total: int
    done: int = 0

    def __call__(self, more: int) -> None:
        self.done += more
        self.progress(self.done, self.total)


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def _bar(of: Progress) -> Any:
    """A progress bar of rich; None without rich, which is optional, and on a terminal that cannot redraw a line."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.table import Column
        from rich.text import Text
    except ImportError:
        return None

    class Left(ProgressColumn):
        """The time left."""

        max_refresh = 1.0

        def render(self, task: Any) -> Text:
            """`about 12 min left`."""
            left = of.left
            return Text(f"about {duration(left)} left" if left else "", style="cyan")

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        return None
    narrow = console.width < 80  # the title and the numbers matter more than the bar
    title = TextColumn(printable(of.title).replace("[", r"\["))
    count = MofNCompleteColumn(table_column=Column(min_width=2 * len(str(of.total)) + 1))
    columns: list[Any] = [title, *([] if narrow else [BarColumn(bar_width=20)]), count]
    columns += [Left(), *([] if narrow else [TimeElapsedColumn(), TextColumn("{task.fields[words]}")])]
    bar = Bar(*columns, console=console, transient=True)
    bar.add_task(of.title, total=of.total, completed=of.done, words="")
    bar.start()
    return bar

"""Commands in forked processes that have imported everything, which die where they are told to.

At a call that changes the disk something can go wrong: opening a file to write, writing, syncing, renaming, removing,
making a folder, locking. In the child every such call is counted, through Python's audit events and three
functions that have none, and `Trap` says what happens at which of them.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVENTS = ("os.rename", "os.mkdir", "os.truncate", "os.link", "os.symlink")
REMOVING = ("os.remove", "os.rmdir")
WRITING = os.O_WRONLY | os.O_RDWR
HUNG = 120.0  # seconds after which a command counts as hanging


@dataclass
class Trap:
    """At the call number `at` that changes the disk (None: at none), do `then`: die, or raise an OSError.

    log    a file that gets one byte at each such call, so that the parent can count them after a death
    """

    at: int | None = None
    then: int = 0  # errno; 0: SIGKILL
    for_ever: bool = False  # all later calls fail as well, as on a full disk
    only: str = ""  # count calls of this kind alone
    seen: int = 0
    log: int = -1

    def __call__(self, kind: str, path: object = None) -> None:
        if self.only and self.only != kind:
            return
        self.seen += 1
        os.write(self.log, b".")
        if self.at is not None and (self.seen == self.at or (self.for_ever and self.seen > self.at)):
            if not self.then:
                os.kill(os.getpid(), signal.SIGKILL)
            if not (self.then == errno.ENOSPC and kind == "remove"):  # a full disk lets files be removed
                raise OSError(self.then, os.strerror(self.then), path)

    def set(self) -> None:
        """Count from here on, in this process, which must be a child."""
        below = os.path.realpath(os.getcwd()) + os.sep
        real = {"open": io.open, "fsync": os.fsync, "flock": fcntl.flock}

        def inside(path: object) -> bool:
            return isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(below)

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event == "open" and isinstance(args[2], int) and args[2] & WRITING and inside(args[0]):
                self("open", args[0])
            elif event in (*EVENTS, *REMOVING) and inside(args[0]):
                self("remove" if event in REMOVING else "change", args[0])

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            made = real["open"](file, mode, *args, **kwargs)
            return _Written(made, self) if set(mode) & set("wax+") and inside(file) else made

        def fsync(fd: int) -> None:
            self("sync")
            real["fsync"](fd)

        def flock(file: Any, operation: int) -> None:
            self("lock")
            real["flock"](file, operation)

        sys.addaudithook(hook)
        builtins.open = io.open = opened  # type: ignore[assignment]
        os.fsync, fcntl.flock = fsync, flock  # type: ignore[assignment]


class _Written:
    """A file opened to write: the trap is between the halves of each write."""

    def __init__(self, file: Any, trap: Trap) -> None:
        self.__dict__.update(file=file, trap=trap)

    def write(self, content: Any) -> int:
        middle = len(content) // 2
        self.file.write(content[:middle])
        if self.trap.at == self.trap.seen + 1:
            with suppress(OSError, ValueError):
                self.file.flush()
        self.trap("write")
        self.file.write(content[middle:])
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _Written:
        self.file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.file.__exit__(*error)

    def __iter__(self) -> Any:
        return iter(self.file)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal that killed it), its output and its calls."""

    code: int
    output: str
    calls: int
    seconds: float

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def hung(self) -> bool:
        return self.code == -signal.SIGALRM

    @property
    def traceback(self) -> bool:
        """Whether an error that nothing foresaw reached the user."""
        return "Traceback (most recent call last)" in self.output or "an unexpected error" in self.output


def run(
    words: Sequence[str], place: Path, *, trap: Trap | None = None, after: float | None = None,
    first: Callable[[], object] = lambda: None, patience: float = HUNG,
) -> Ended:  # fmt: skip
    """`robattr WORDS` in the folder `place`, in a forked process; killed `after` so many seconds, if given.

    `first` is called in the child before everything else.
    """
    log, calls = place.with_name(f"{place.name}.log"), place.with_name(f"{place.name}.calls")
    child, began = start(words, place, trap=trap, first=first, patience=patience), time.monotonic()
    if after is not None:
        time.sleep(max(0.0, began + after - time.monotonic()))
        os.kill(child, signal.SIGKILL)  # a child that has ended is a zombie until `waitpid`
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - began
    return Ended(
        os.waitstatus_to_exitcode(status), log.read_text("utf-8", "replace"), calls.stat().st_size, seconds
    )  # fmt: skip


def start(
    words: Sequence[str], place: Path, *, trap: Trap | None = None, first: Callable[[], object] = lambda: None,
    log: Path | None = None, patience: float = HUNG,
) -> int:  # fmt: skip
    """The id of a forked process that runs `robattr WORDS` in `place`; its output goes to PLACE.log."""
    log = log or place.with_name(f"{place.name}.log")
    for file in (log, log.with_suffix(".calls")):  # here: the child may be killed before it does anything
        file.write_bytes(b"")
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(patience))
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        calls = os.open(log.with_suffix(".calls"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.chdir(place)
        sys.argv = ["robattr", *words]
        first()
        trap = trap or Trap()
        trap.log = calls
        trap.set()
        from robattr.cli import run as command

        command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
            names = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
            log.with_suffix(".modules").write_text("\n".join(names))
        os._exit(code)


FULL, NO_LOCKS, READ_ONLY = errno.ENOSPC, errno.ENOLCK, errno.EROFS

"""Faults: a full, read-only or removed folder, a clock that jumps, two processes, a killed rank, no locks."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from torture.commands import Command, commands
from torture.processes import FULL, NO_LOCKS, READ_ONLY, Ended, Trap, run, start


class Faults:
    """Each method prints one line per command; `failed` are the lines that say something else than expected."""

    def __init__(self, place: Path, stock: Path, address: str, *, seed: int) -> None:
        self.place, self.stock, self.rng = place, stock, random.Random(f"{seed} faults")
        self.all = {command.name: command for command in commands(address)}
        self.number, self.tried, self.failed = 0, 0, list[str]()
        self.want = {}

    def torture(self) -> bool:
        """All of them; whether every one was met as it should be."""
        for name in ("full_disk", "read_only", "no_locks", "clock", "removed", "two", "rank"):
            before, began, bad = self.tried, time.monotonic(), len(self.failed)
            getattr(self, name)()
            spent = time.monotonic() - began
            counts = f"{self.tried - before} commands, {len(self.failed) - bad} failures, {spent:.0f} s"
            print(f"{name.replace('_', ' ')}: {counts}", flush=True)
            for note in self.failed[bad:][:10]:
                print(f"  {note}", flush=True)
        return not self.failed

    def full_disk(self) -> None:
        """From one call on nothing can be written (ENOSPC): one line, exit 2, no temporary file; then it continues."""
        for command in self.all.values():
            self._broken(command, FULL, times=3)

    def read_only(self) -> None:
        """The file system becomes read-only (EROFS) at some call."""
        for name in ("train", "evaluate", "audit", "sweep", "record", "report", "fetch"):
            self._broken(self.all[name], READ_ONLY, times=1)

    def _broken(self, command: Command, error: int, *, times: int) -> None:
        want, calls = self._whole(command)
        for _ in range(times):
            here = self._place(command)
            ended = run(
                command.words, here, trap=Trap(self.rng.randint(1, calls), error, for_ever=True), first=command.first
            )
            left = [path.name for path in here.rglob(".*.tmp")]
            if ended.code == 0:  # the call could fail without harm, such as syncing a folder
                self._same(command, ended, here, want)
            elif ended.traceback or ended.hung or "robattr:" not in ended.output:
                self._fail(command, ended, f"{os.strerror(error)} was not said")
            elif left and error == FULL:  # what cannot be written can be removed
                self._fail(command, ended, f"left {left}")
            again = run(command.words, here, first=command.first)
            self._same(command, again, here, want)

    def no_locks(self) -> None:
        """`flock` fails with ENOLCK: it is said once, and the command goes on."""
        for name in ("train", "evaluate", "audit", "harden", "sweep", "certify", "fetch"):
            command = self.all[name]
            want, _ = self._whole(command)
            here = self._place(command)
            ended = run(command.words, here, trap=Trap(1, NO_LOCKS, for_ever=True, only="lock"), first=command.first)
            if "has no locks" not in ended.output:
                self._fail(command, ended, "a file system without locks was not named")
            self._same(command, ended, here, want)

    def clock(self) -> None:
        """The wall clock jumps back and forth by years, also while the command is killed in between."""

        def jumping() -> None:
            real, jumps = time.time, random.Random(1)
            time.time = lambda: real() + jumps.uniform(-1e9, 1e9)  # type: ignore[assignment]
            time.time_ns = lambda: int(time.time() * 1e9)  # type: ignore[assignment]

        for name in ("train", "evaluate", "audit", "sweep"):
            command = self.all[name]
            want, calls = self._whole(command)
            here = self._place(command)
            run(
                command.words,
                here,
                trap=Trap(self.rng.randint(2, calls)),
                first=lambda c=command: (c.first(), jumping()),
            )
            for path in here.rglob("*"):  # and files come from the future, or from long ago
                os.utime(path, (0, self.rng.choice((0, 4e9))), follow_symlinks=False)
            ended = run(command.words, here, first=lambda c=command: (c.first(), jumping()))
            self._same(command, ended, here, want)

    def removed(self) -> None:
        """The folder is removed at some call: the command says so and exits with 2, or begins anew; never 0."""
        for name in ("train", "evaluate", "audit", "harden", "sweep", "certify"):
            command = self.all[name]
            want, calls = self._whole(command)
            for _ in range(2):
                here = self._place(command)
                at = self.rng.randint(calls // 3, calls - 2)
                ended = run(command.words, here, trap=_Removing(at, here / "out"), first=command.first)
                if ended.traceback or ended.hung or (ended.code == 0 and command.content(here) != want):
                    self._fail(command, ended, f"the folder was removed at call {at} of {calls}")
                self._same(command, run(command.words, here, first=command.first), here, want)

    def two(self) -> None:
        """Two processes on one folder: one of them works, the other says so, or both finish; the result is the same."""
        for name in ("train", "evaluate", "audit", "harden", "sweep", "certify"):
            command = self.all[name]
            want, _ = self._whole(command)
            here = self._place(command)
            logs = [here.with_name(f"{here.name}-{number}.log") for number in (1, 2)]
            children = [start(command.words, here, first=command.first, log=log) for log in logs]
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            said = [log.read_text("utf-8", "replace") for log in logs]
            for code, text in zip(codes, said, strict=True):
                if code not in (0, 2) or (code == 2 and "another process" not in text):
                    self._fail(command, Ended(code, text, 0, 0.0), "beside another process")
            self._same(command, run(command.words, here, first=command.first), here, want)

    def rank(self) -> None:
        """One of two processes of torchrun is killed: the others end, and the same command continues."""
        command = self.all["train"]
        here = self._place(command)
        words = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "robattr",
            "train", "fashion-mini/natural", "--set=steps=200", "--set=batch=8", "--set=checkpoint_every=5",
            "--set=validate_every=0", "--device", "cpu", "--out", "out",
        ]  # fmt: skip
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
        self.tried += 1
        with open(here / "log", "w+") as log:
            group = subprocess.Popen(words, cwd=here, env=env, stdout=log, stderr=log, start_new_session=True)
            try:
                while group.poll() is None and len(list((here / "out" / "checkpoints").glob("step-*"))) < 2:
                    time.sleep(0.1)
                below = subprocess.run(["pgrep", "-P", str(group.pid)], capture_output=True, text=True).stdout.split()
                os.kill(int(below[-1]), signal.SIGKILL)
                code = group.wait(timeout=180)
            except (subprocess.TimeoutExpired, IndexError):
                os.killpg(group.pid, signal.SIGKILL)
                code = -9
            log.seek(0)
            text = log.read()
        if code in (0, -9):
            self._fail(command, Ended(code, text, 0, 0.0), "a killed rank did not end the others")
        steps = words[words.index("train") :]
        ended = run(steps, here)
        lines = (here / "out" / "metrics.jsonl").read_text().splitlines()
        if ended.code or not (here / "out" / "model.safetensors").is_file() or len(lines) != len(set(lines)):
            self._fail(command, ended, "after a killed rank")

    def _whole(self, command: Command) -> tuple[dict, int]:
        """What an undisturbed run leaves, and its calls."""
        if command.name not in self.want:
            here = self._place(command)
            ended = run(command.words, here, first=command.first)
            assert not ended.code, ended.output
            self.want[command.name] = command.content(here), ended.calls
            shutil.rmtree(here)
        return self.want[command.name]

    def _place(self, command: Command) -> Path:
        self.number += 1
        return command.place(self.place / f"fault-{self.number}", self.stock)

    def _same(self, command: Command, ended: Ended, here: Path, want: dict) -> None:
        self.tried += 1
        got = command.content(here)
        if ended.code:
            self._fail(command, ended, "the same command does not continue")
        elif got != want:
            odd = [name for name in {*got, *want} if got.get(name) != want.get(name)]
            self._fail(command, ended, f"another result: {odd}")

    def _fail(self, command: Command, ended: Ended, reason: str) -> None:
        self.failed.append(f"{command.name}: {reason}: exit {ended.code}: {ended.output.strip()[-300:]!r}")


class _Removing(Trap):
    """Removes a folder at a call, once."""

    def __init__(self, at: int, folder: Path) -> None:
        super().__init__()
        self.when, self.folder = at, folder

    def __call__(self, kind: str, path: object = None) -> None:
        super().__call__(kind, path)
        if self.seen == self.when:
            self.when = -1
            subprocess.run(["rm", "-rf", str(self.folder)], check=False)

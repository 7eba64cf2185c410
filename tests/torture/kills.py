"""SIGKILL at random moments, and at every call that changes the disk; then the same command, until it finishes.

lost       the result lacks something that an undisturbed run has
doubled    it has something twice, or something more
lockout    the same command, called again, refuses
torn       a visible file was half written at the moment of a kill
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.commands import Command, commands
from torture.processes import Ended, Trap, run

APPENDED = ("metrics.jsonl",)  # the only file that grows; its reader drops a last line that was cut


@dataclass
class Tally:
    """The figures of one command."""

    name: str
    calls: int = 0
    injected: int = 0
    random: int = 0
    found: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, kind: str, text: str) -> None:
        self.found[kind] += 1
        self.notes.append(f"{self.name}: {kind}: {text}")


KINDS = ("lost", "doubled", "lockout", "torn", "hung")


def torture(place: Path, stock: Path, address: str, *, seed: int, kills: int, only: set[str]) -> list[Tally]:
    """About `kills` of them: two thirds at calls, at every one if they suffice, the rest at random moments."""
    chosen = [command for command in commands(address) if not only or command.name in only]
    whole = {command.name: command.place(place / f"{command.name}-whole", stock) for command in chosen}
    undisturbed = {command.name: run(command.words, whole[command.name], first=command.first) for command in chosen}
    for name, ended in undisturbed.items():
        if ended.code:
            raise SystemExit(f"{name} fails undisturbed ({ended.code}): {ended.output}")
    share = min(1.0, kills / 1.5 / sum(ended.calls for ended in undisturbed.values()))
    tallies = []
    for command in chosen:
        rng, ended = random.Random(f"{seed} {command.name}"), undisturbed[command.name]
        hit = sorted(rng.sample(range(1, ended.calls + 1), max(1, round(share * ended.calls))))
        tally = Tally(command.name, ended.calls)
        want = command.content(whole[command.name])
        later = [rng.uniform(0, ended.seconds) for _ in range(round(kills / 3 / len(chosen)))]
        _torture(command, place, stock, hit, later, want, tally, rng)
        tallies.append(tally)
        show([tally], heading=len(tallies) == 1)
    return tallies


def _torture(
    command: Command, place: Path, stock: Path, hit: list[int], later: list[float], want: dict[str, Any], tally: Tally,
    rng: random.Random,
) -> None:  # fmt: skip
    """Kill at the calls `hit`, each in a new folder, and `later`, in one of those or in a new one."""
    chains: list[list[Trap | float]] = [[Trap(call)] for call in hit]
    for moment in later:
        if rng.random() < 0.3:
            chains.append([moment])
        else:
            rng.choice(chains).append(moment)
    for number, chain in enumerate(chains):
        here = command.place(place / f"{command.name}-{number}", stock)
        for moment in chain:
            if not _kill(command, here, moment, tally):
                break  # refused
        _finish(command, here, want, tally)
        shutil.rmtree(here)


def _kill(command: Command, here: Path, moment: Trap | float, tally: Tally) -> bool:
    if isinstance(moment, Trap):
        ended = run(command.words, here, trap=moment, first=command.first)
        tally.injected += ended.killed
    else:
        ended = run(command.words, here, after=moment, first=command.first)
        tally.random += ended.killed
    for path in here.rglob("*"):
        if path.is_file() and path.name not in APPENDED and not path.name.startswith((".", "partial-")) and _torn(path):
            tally.note("torn", f"{path.relative_to(here)}")
    return ended.killed or (not ended.code) or _refused(ended, tally)


def _refused(ended: Ended, tally: Tally) -> bool:
    tally.note("hung" if ended.hung else "lockout", f"exit {ended.code}: {ended.output.strip()[-600:]}")
    return False


def _finish(command: Command, here: Path, want: dict[str, Any], tally: Tally) -> None:
    ended = run(command.words, here, first=command.first)
    if ended.code:
        _refused(ended, tally)
        return
    got = command.content(here)
    for name in sorted(want.keys() | got.keys()):
        if name not in got:
            tally.note("lost", name)
        elif name not in want:
            tally.note("doubled", f"{name} is left over: {str(got[name])[:100]}")
        elif got[name] != want[name]:
            more = len(str(got[name])) > len(str(want[name]))
            tally.note(
                "doubled" if more else "lost", f"{name}: expected {str(want[name])[:300]}, got {str(got[name])[:300]}"
            )


def _torn(path: Path) -> bool:
    try:
        data = path.read_bytes()
        if path.suffix in (".json", ".settings"):
            json.loads(data)
        elif path.suffix == ".jsonl":
            [json.loads(line) for line in data.splitlines()]
            return not data.endswith(b"\n")
        elif path.suffix == ".html":
            return not data.rstrip().endswith(b"</html>")
        elif path.suffix == ".safetensors":
            from safetensors.numpy import load

            load(data)
    except Exception:
        return True
    return False


def show(tallies: list[Tally], *, heading: bool = True) -> None:
    """Print a table of the figures."""
    if heading:
        print(f"{'command':10}{'calls':>7}{'injected':>10}{'random':>8}" + "".join(f"{kind:>9}" for kind in KINDS))
    for tally in tallies:
        counts = "".join(f"{tally.found[kind]:9}" for kind in KINDS)
        print(f"{tally.name:10}{tally.calls:7}{tally.injected:10}{tally.random:8}{counts}", flush=True)
        for note in tally.notes[:5]:
            print(f"  {note}", flush=True)


def total(tallies: list[Tally], began: float) -> bool:
    """Print the sum; whether nothing was found."""
    whole = Tally(
        "all", sum(t.calls for t in tallies), sum(t.injected for t in tallies), sum(t.random for t in tallies)
    )
    for tally in tallies:
        whole.found += tally.found
    show([whole], heading=False)
    killed = whole.injected + whole.random
    print(f"{killed} kills in {time.monotonic() - began:.0f} s; {sum(whole.found.values())} failures")
    return not whole.found

"""Bad input: damaged files of every kind, and odd values of every option, to the real commands.

traceback   an error that nothing foresaw
silent      a number was printed although the records or the summary behind it had been changed
hung        no answer after `HUNG` seconds
raw         a control character reached the terminal
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from torture.commands import CPU, RUN, SHORT
from torture.mutations import OSC, of
from torture.processes import Ended, run

REPORT = ["report", "evaluated", "-o", "page.html"]
RESUME = ["train", RUN, *SHORT, *CPU, "--set=steps=61", "--out", "run"]
EVALUATE = ["evaluate", "evaluated", "--examples", "12", "--iterations", "1", *CPU]
RECORDS = "evaluated/records/paper@1steps-ig"
FILES = {
    "evaluated/config.json": [REPORT, EVALUATE],
    "evaluated/environment.json": [REPORT],
    "evaluated/metrics.jsonl": [REPORT],
    f"{RECORDS}.json": [REPORT, EVALUATE],
    f"{RECORDS}.jsonl": [REPORT, EVALUATE, ["compare", "evaluated", "evaluated", "--protocol", "paper@1steps"]],
    f"{RECORDS}.settings": [EVALUATE],
    f"{RECORDS}-gallery.npz": [REPORT],
    "evaluated/model.safetensors": [EVALUATE],
    "run/config.json": [RESUME],
    "run/environment.json": [RESUME],
    "run/metrics.jsonl": [RESUME],
    "run/checkpoint": [RESUME],
    "published.json": [["report", "published.json", "-o", "page.html"]],
    "published-gallery.npz": [["report", "published.json", "-o", "page.html"]],
    "config.toml": [["train", "--config", "config.toml", "--dry-run"]],
    "config.json": [["train", "--config", "config.json", "--dry-run"]],
    "sweep/lr=0.01/sweep.json": [["sweep", RUN, *SHORT, *CPU, "--set=steps=1", "--over", "lr=0.01", "--examples", "0",
                                  "--out", "sweep"]],
    "images/a/0.png": [["audit", "audit_fixtures:factory", "--data", "images", "--examples", "4",
                        "--iterations", "1", "--points", "2", "--protocol", "paper", *CPU, "-o", "page.html"]],
}  # fmt: skip
SEALED = (f"{RECORDS}.json", f"{RECORDS}.jsonl", "published.json")  # whose content has a digest
VALUES = (
    "", "0", "-1", "1e308", "-1e308", "nan", "inf", "99999999999999999999", "1e18", "8/0", "x", "a,b,,c", "../..", OSC,
    "[red]", "=", "a=b", "ä" * 3000, "\udcff", ":", "os:system", "/dev/null", "cuda:99",
)  # fmt: skip
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x9f]")
KINDS = ("traceback", "silent", "hung", "raw")
PATIENCE = 60.0


@dataclass
class Tally:
    """The figures."""

    tried: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    found: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def judge(
        self, what: str, words: list[str], ended: Ended, *, sealed: bool = False, whole: list[str] | None = None
    ) -> None:
        """Count; of a file with a digest that was changed, `whole` are the numbers that may be printed, if any."""
        self.tried[what] += 1
        self.refused += ended.code == 2
        problems = {
            "traceback": ended.traceback or ended.code not in (0, 1, 2, -14),
            "hung": ended.hung,
            "raw": CONTROL.search(ended.output) is not None,
            "silent": (sealed and ended.code == 0 and numbers(ended) != whole)
            or ("nan" not in " ".join(words) and re.search(r"\bnan\b", ended.output.split("robattr:")[0]) is not None),
        }
        for kind in (kind for kind, so in problems.items() if so):
            self.found[kind] += 1
            self.notes.append(
                f"{kind}: {what}: robattr {' '.join(words)[:160]!r}: exit {ended.code}: {ended.output[-300:]!r}"
            )


def torture(place: Path, stock: Path, *, number: int, examples: int) -> bool:
    """About `examples` runs with damaged files and as many with odd options; whether nothing was found."""
    began, tally = time.monotonic(), Tally()
    base = prepare(place / "base", stock)
    files(base, place, tally, number, max(1, examples // len(FILES)))
    options(base, place, tally, number, examples)
    for kind, tried in (
        ("files", [k for k in tally.tried if not k.startswith("--")]),
        ("options", [k for k in tally.tried if k.startswith("--")]),
    ):
        print(f"{kind}: {sum(tally.tried[k] for k in tried)} commands over {len(tried)} of them")
    said = ", ".join(f"{tally.found[kind]} {kind}" for kind in KINDS)
    print(
        f"bad input: {tally.tried.total()} commands, {tally.refused} refused; {said}; {time.monotonic() - began:.0f} s"
    )
    for note in tally.notes[:20]:
        print(f"  {note}", flush=True)
    return not tally.found


def numbers(ended: Ended) -> list[str]:
    """The numbers that a command printed, without durations."""
    return re.findall(r"\d+\.\d+", re.sub(r"in [\d.]+ m?s", "", ended.output))


def prepare(base: Path, stock: Path) -> Path:
    """A folder with one valid file of every kind."""
    base.mkdir()
    for name in ("run", "evaluated", "images"):
        shutil.copytree(stock / name, base / name)
    for words in (
        ["record", "evaluated", "-o", "results"],
        ["train", RUN, *SHORT, "--dry-run"],
        ["sweep", RUN, *SHORT, *CPU, "--set=steps=1", "--over", "lr=0.01", "--examples", "0", "--out", "sweep"],
    ):
        ended = run(words, base)
        assert not ended.code, ended.output
        if "--dry-run" in words:
            (base / "config.toml").write_text(ended.output)
    shutil.copy(base / "run" / "config.json", base / "config.json")
    for file in (base / "results").iterdir():
        shutil.copy(file, base / ("published-gallery.npz" if file.suffix == ".npz" else "published.json"))
    return base


def files(base: Path, place: Path, tally: Tally, number: int, each: int) -> None:
    """Damage each file `each` times and run the commands that read it."""
    again = place / "again"
    shutil.copytree(base, again)
    remade = numbers(run(EVALUATE, again))  # a damaged summary is made again from the records, a lost record measured
    for name, commands in FILES.items():
        source = _checkpoint(base) if name == "run/checkpoint" else base / name
        content = source.read_bytes()

        def attempt(
            bad: bytes, words: list[str], *, name: str = name, source: Path = source, content: bytes = content
        ) -> None:
            here = place / "bad"
            shutil.copytree(base, here)
            target = here / source.relative_to(base)
            if name == "run/checkpoint":  # with the hash that its content has, else it is passed over
                target.unlink()
                target = target.with_name(f"step-000000060-{hashlib.sha256(bad).hexdigest()[:16]}.pt")
            target.write_bytes(bad)
            ended = run(words, here, patience=PATIENCE)
            shutil.rmtree(here)
            whole = remade if words == EVALUATE and name in (f"{RECORDS}.json", f"{RECORDS}.jsonl") else None
            tally.judge(name, words, ended, sealed=name in SEALED and _changed(content, bad), whole=whole)

        _many(st.tuples(of(name, content), st.sampled_from(commands)), lambda pair: attempt(*pair), number, each)


def options(base: Path, place: Path, tally: Tally, number: int, most: int) -> None:
    """Give options of every command odd values."""
    import typer

    from robattr.cli import app

    program = typer.main.get_command(app)
    audit = FILES["images/a/0.png"][0]
    short = [*SHORT, *CPU, "--set=steps=1", "--out", "new"]
    valid = {
        "train": ["train", RUN, *short], "sweep": ["sweep", RUN, *short, "--over", "lr=0.01", "--examples", "0"],
        "evaluate": EVALUATE, "compare": ["compare", "evaluated", "evaluated", "--protocol", "paper@1steps"],
        "report": REPORT, "record": ["record", "evaluated"], "figures": ["figures", "evaluated", "--formats", "svg"],
        "card": ["card", "evaluated"], "audit": audit,
        "harden": ["harden", *audit[1:9], *CPU, "--steps", "1", "--batch", "2", "--set", "m=1", "-o", "hard"],
        "doctor": ["doctor", *audit[1:5], *CPU], "certify": ["certify", audit[2], *audit[3:7], "--samples", "10", *CPU],
    }  # fmt: skip
    known = [
        (name, option.opts[-1])
        for name, words in valid.items()
        for option in program.commands[name].params
        if option.opts[0].startswith("-") and not option.is_flag and option.opts[-1] != "--help"
    ]

    def attempt(pair: tuple[tuple[str, str], str]) -> None:
        (name, option), value = pair
        here = place / "bad"
        shutil.copytree(base, here)
        words = [*valid[name], f"{option}={value}"]
        tally.judge(f"--{name} {option}", words, run(words, here, patience=PATIENCE))
        shutil.rmtree(here)

    _many(st.tuples(st.sampled_from(known), st.sampled_from(VALUES)), attempt, number, most)


def _many(strategy: Any, attempt: Callable[[Any], None], number: int, most: int) -> None:
    """`attempt` on `most` examples of the strategy; it counts, and raises nothing."""

    @seed(number)
    @settings(
        max_examples=most,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(example: Any) -> None:
        attempt(example)

    each()


def _checkpoint(base: Path) -> Path:
    return next((base / "run" / "checkpoints").glob("step-000000060-*.pt"))


def _changed(content: bytes, bad: bytes) -> bool:
    """Whether the values differ, not only the layout."""
    try:
        return [json.loads(line) for line in _texts(content)] != [json.loads(line) for line in _texts(bad)]
    except (ValueError, RecursionError):
        return True


def _texts(content: bytes) -> list[bytes]:
    return content.splitlines() if b"\n{" in content else [content]

"""The program as a whole: help, completion, the list of names, one meaning per flag."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from robattr import data, recipes
from robattr.cli import app
from robattr.cli._names import recipe_names, zoo_names
from robattr.cli._tables import show_table, show_text
from robattr.models import zoo

PROGRAM = typer.main.get_command(app)
EVIL = "\x1b]0;owned\x07\u202e"  # sets the title of a terminal, and turns the direction of writing
CONTINUED = ("train", "sweep", "evaluate", "audit", "harden", "certify", "demo", "reproduce")


def commands():
    """(name, command) of every command, also those of groups."""
    for name, command in PROGRAM.commands.items():
        below = getattr(command, "commands", None)
        yield from below.items() if below else [(name, command)]


COMMANDS = dict(commands())


def options(command):
    return {opt: param for param in command.params for opt in param.opts if opt.startswith("--")}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_flags_show_no_type(name: str) -> None:
    shown = CliRunner().invoke(
        app, [*(["data"] if name in ("list", "fetch", "verify") else []), name or "--help", "--help"]
    )
    assert shown.exit_code == 0
    assert "<bool>" not in shown.output


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("words", [[], ["--help"], ["audit", "--help"], ["evaluate", "--help"]])
def test_help_cuts_no_word(words: list[str], columns: int) -> None:
    shown = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)})
    assert shown.output.count("Usage: robattr") == 1
    if "audit" in words:
        assert {"--trust-code", "--iterations"} <= set(shown.output.split()), "an option is cut"
    assert not re.search(r"\w…", shown.output)
    wide = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    letters = [set(re.findall(r"--[\w-]+", text)) for text in (shown.output, wide.output)]
    assert letters[0] == letters[1]


@pytest.mark.parametrize("name", CONTINUED)
def test_what_continues_can_begin_anew(name: str) -> None:
    assert options(COMMANDS[name])["--fresh"].is_flag
    assert "the same command continues" in " ".join((COMMANDS[name].help or "").split())
    assert "--resume" not in options(COMMANDS[name])


def test_a_flag_has_one_meaning() -> None:
    """Equal names have equal texts, or are listed here: what differs is only the thing that the command is about."""
    texts = defaultdict(set)
    for command in COMMANDS.values():
        for name, param in options(command).items():
            texts[name].add(param.help)
    about = {
        "--out", "--examples", "--seed", "--eps", "--data", "--maps", "--set", "--objective", "--precision",
        "--protocol", "--workers",
    }  # fmt: skip
    assert {name for name, said in texts.items() if len(said) > 1} == about
    assert {"--steps", "--iterations", "--fresh", "--device", "--data-dir"} <= texts.keys() - about
    assert "--dataset" not in texts, "--data everywhere"
    assert [name for name, command in COMMANDS.items() if "--steps" in options(command)] == ["harden"]


def test_every_parameter_is_explained_and_out_has_one_short_name() -> None:
    for name, command in COMMANDS.items():
        for param in command.params:
            assert param.help or param.name == "help", f"{name}: {param.name} has no help"
            if "--out" in param.opts:
                assert "-o" in param.opts, name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate"], "Missing argument 'RUN': A run directory, a weights file, or a model of the zoo"),
        (["audit", "m:f"], "Missing option '--data': A folder with one folder of images per class"),
    ],
)
def test_what_is_missing_is_explained(words: list[str], said: str) -> None:
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert shown.exit_code == 2
    assert said in shown.output


def complete(*words: str) -> list[str]:
    line = ["robattr", *words]
    env = {"_ROBATTR_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(line), "COMP_CWORD": str(len(line) - 1)}
    return CliRunner().invoke(app, [], env=env, prog_name="robattr").output.split()


def test_the_shell_completes_commands_flags_and_names(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mnist").mkdir()
    assert complete("swe") == ["sweep"]
    assert complete("train", "--fre") == ["--fresh"]
    assert "mnist/ig-sum-norm" in complete("train", "mnist/ig")
    assert complete("evaluate", "x", "--protocol", "s") == ["strict"]
    assert complete("evaluate", "x", "--maps", "ig,s") == ["ig,sg", "ig,smoothgrad"]
    assert complete("evaluate", "mni") == ["mnist/", *(name for name in zoo.entries() if name.startswith("mni"))]
    assert complete("data", "fetch", "fashion-mi") == ["fashion-mini"]
    assert complete("reproduce", "figure") == ["figure1", "figure2"]
    assert complete("reproduce", "table1", "--datasets", "mnist,gt") == ["mnist,gtsrb"]
    assert complete("audit", "--data", "flo") == ["flower"]
    assert complete("doctor", "mni")[0] == "mnist/"


def test_names_are_completed_without_torch() -> None:
    assert sorted(recipe_names()) == sorted(recipes.names())
    assert zoo_names() == list(zoo.entries())
    for words, found in (
        ("train fashion-mini/ig-s", "fashion-mini/ig-sum-norm"),
        ("evaluate gtsrb/madry-t", "gtsrb/madry-tuned"),
        ("data fetch flow", "flower"),
    ):
        line = f"robattr {words}"
        env = {"_ROBATTR_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        blocked = "import sys; sys.modules['torch'] = None; from robattr.cli import app; app()"
        done = subprocess.run(
            [sys.executable, "-c", blocked], env={**os.environ, **env}, capture_output=True, text=True, check=False
        )
        assert (done.stdout.split(), done.stderr) == ([found], "")


def test_everything_with_a_name_is_listed() -> None:
    shown = CliRunner().invoke(app, ["--list"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert {*recipes.names(), *zoo.entries(), *data.names()} <= set(shown.output.split())


def test_a_table_fits_its_terminal(capsys, monkeypatch) -> None:
    rows = [("[red]first", "1,000", "a sentence of several words that may wrap"), ("second", "2", "short")]
    for columns, wide in ((120, True), (24, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        show_table(("Name", "Number", "About"), rows, title="Title")
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= columns
        assert "…" not in shown
        assert "[red]first" in shown
        assert any("[red]first" in line and "1,000" in line for line in shown.splitlines()) == wide
    monkeypatch.delenv("COLUMNS")
    show_table(("Name",), [("long " * 60,)])
    show_text("[red]long " * 60)
    shown = capsys.readouterr().out
    assert ("long " * 60).strip() in shown, "a pipe has no width"
    assert ("[red]long " * 60).strip() in shown
    show_table(("Name",), [("**best**",)])
    assert "**best**" in capsys.readouterr().out, "a pipe has no bold letters"
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    show_table(("Name",), [("**best**",)])
    assert "\x1b[1mbest" in capsys.readouterr().out
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("COLUMNS", "24")
    show_text("a sentence that is wrapped between words")
    assert capsys.readouterr().out.split("\n")[:2] == ["a sentence that is ", "wrapped between words"]


@pytest.mark.parametrize("words", [["evaluate", "run", f"--no{EVIL}"], [EVIL], ["data", EVIL], ["card", "run", EVIL]])
def test_words_that_a_usage_error_repeats_are_escaped(words: list[str]) -> None:
    """An escape sequence in a name that was pasted, or completed, could retitle the terminal."""
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2
    assert not set(shown.output) & set(EVIL) - set("]0;owned")


def test_titles_and_cells_of_tables_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """The title of a certificate names its run and its dataset, which may be a folder of a stranger."""
    show_table([f"a{EVIL}"], [[f"b{EVIL}"]], title=f"c{EVIL}")
    said = capsys.readouterr().out
    assert said.count("\\x1b]0;owned\\x07\\u202e") == 3
    assert not set(said) & {"\x1b", "\x07", "\u202e"}


INTERRUPTED = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"  # Ctrl-C while torch is imported


def program(torch: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`robattr` in a process of its own, with another torch."""
    path = os.pathsep.join([str(torch), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-m", "robattr", *words], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("words", [["--list"], ["train", "mnist/natural"], ["evaluate", "run"], ["card", "run"]])
def test_an_interrupt_while_torch_is_imported_ends_quietly(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "torch.py").write_text(INTERRUPTED)
    ended = program(tmp_path, *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"]])
def test_help_does_not_wait_for_torch(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "torch.py").write_text("raise AssertionError('torch was imported')")
    ended = program(tmp_path, *words)
    assert ended.returncode == 0, ended.stderr
    assert "robattr" in ended.stdout

"""The commands `record`, `report` and `figures`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_runs import write_run
from robattr import cli
from robattr.cli import app
from robattr.errors import InvalidInput


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_run(tmp_path_factory.mktemp("runs"), "ig-norm", examples=2, steps=2))


def test_report_and_figures_write_their_files(run: str, tmp_path: Path) -> None:
    page, folder = tmp_path / "deep" / "page.html", tmp_path / "figures"
    result = CliRunner().invoke(app, ["report", run, "-o", str(page)], catch_exceptions=False)
    assert result.exit_code == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    result = CliRunner().invoke(app, ["figures", run, "-o", str(folder), "--formats", "svg"], catch_exceptions=False)
    assert result.exit_code == 0
    names = ["eps.svg", "figure1.svg", "figure2.svg", "table.csv", "table.md", "table.tex", "training.svg"]
    assert sorted(path.name for path in folder.iterdir()) == names


def test_an_unknown_format_is_refused(run: str) -> None:
    result = CliRunner().invoke(app, ["figures", run, "--formats", "pgn"])
    assert "did you mean 'png'" in str(result.exception)


@pytest.mark.parametrize(
    "words",
    [("report", "-o", "afile/x.html"), ("figures", "-o", "afile"),
     ("record", "-o", "afile")],
)  # fmt: skip
def test_an_output_that_cannot_be_written_is_a_one_line_error(
    run: str, words, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").touch()
    monkeypatch.setattr("sys.argv", ["robattr", *words, run])
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("robattr: cannot read or write afile")
    assert "choose another --out" in said
    assert said.count("\n") == 1


def test_another_page_ending_and_no_format_are_refused(run: str, tmp_path: Path) -> None:
    for words, says in (
        (("report", "-o", str(tmp_path / "x.pdf")), "ends in .html or .htm, got"),
        (("report", "-o", str(tmp_path / "x.md")), "ends in .html or .htm, got"),
        (("figures", "-o", str(tmp_path / "f"), "--formats", ""), "at least one format, got ''"),
        (("figures", "-o", str(tmp_path / "f"), "--formats", " ,"), "at least one format"),
    ):
        refused = CliRunner().invoke(app, [*words, run]).exception
        assert isinstance(refused, InvalidInput)
        assert says in str(refused)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("report",), ("record",), ("figures", "--formats", "svg")], ids=lambda words: words[0]
)
def test_names_of_written_files_reach_the_terminal_escaped(run: str, tmp_path: Path, words, undrawn) -> None:
    out = tmp_path / f"\x1b]0;owned\x07{'.html' * (words == ('report',))}"
    said = CliRunner().invoke(app, [*words, run, "-o", str(out)], catch_exceptions=False).output
    assert "\\x1b]0;owned\\x07" in said
    assert not set(said) & {"\x1b", "\x07"}


def test_record_says_what_it_wrote_and_what_is_unchanged(run: str, tmp_path: Path) -> None:
    words = ["record", run, "-o", str(tmp_path / "results")]
    first, second = (CliRunner().invoke(app, words, catch_exceptions=False).output.splitlines() for _ in range(2))
    assert len(first) == len(second) == 2
    assert all(line.startswith("wrote ") for line in first)
    assert all(line.startswith("unchanged ") for line in second)

"""robattr data list | fetch | verify."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from download_fixtures import Server
from robattr import data
from robattr.cli import app
from robattr.data import mnist
from robattr.errors import InvalidInput


def run(*arguments: str | Path):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_fetch_verify_list(tiny_mnist: Server, tmp_path: Path) -> None:
    before = run("list", "--data-dir", tmp_path)
    assert before.exit_code == 0
    assert all(name in before.output for name in data.names())
    assert "missing" in before.output
    assert "embedded" in before.output

    missing = run("verify", "mnist", "--data-dir", tmp_path)
    assert (missing.exit_code, "missing" in missing.output) == (1, True)
    assert "run `robattr data fetch mnist`" in missing.output

    fetched = run("fetch", "mnist", "--data-dir", tmp_path)
    assert fetched.exit_code == 0, fetched.output
    assert "verified" in fetched.output
    assert sorted(p.name for p in (tmp_path / "mnist").iterdir()) == sorted(f"{name}.gz" for name in mnist.FILES)
    assert len(data.load("mnist", tmp_path).train) == 110

    everything = run("verify", "--data-dir", tmp_path)
    assert everything.exit_code == 0
    assert everything.output.count("verified") == 2  # and fashion-mini

    path = tmp_path / "mnist" / f"{mnist.FILES[2]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    damaged = run("verify", "mnist", "--data-dir", tmp_path)
    assert damaged.exit_code == 1
    assert "damaged" in damaged.output
    assert str(path) in damaged.output.replace("\n", "")


def test_a_mistyped_name_gets_the_nearest() -> None:
    result = run("fetch", "fashon-mnist")
    assert isinstance(result.exception, InvalidInput)
    assert "did you mean 'fashion-mnist'" in str(result.exception)

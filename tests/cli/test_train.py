"""`robattr train` as it is typed."""

from __future__ import annotations

import errno
import io
import json
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from robattr import cli, recipes
from robattr._version import __version__
from robattr.cli import app
from robattr.cli.train import resolve, train_warm_start
from robattr.errors import CheckpointError, InvalidInput, RobattrError
from robattr.training import settings
from robattr.training.config import TrainConfig
from robattr.training.loop import train
from train_fixtures import chain_recipes, shorten_recipes

QUICK = [f"--set={word}" for word in ("steps=2", "batch=8", "attack_steps=1", "m=2", "m_attack=1")]


def invoke(*words):
    return CliRunner().invoke(app, ["train", *words])


def test_a_dry_run_prints_what_config_reads_back(tmp_path):
    printed = invoke("mnist/ig-norm", "--set", "weight=0.1", "--seed", "7", "--precision", "tf32", "--dry-run").stdout
    assert printed.startswith("# runs/mnist/ig-norm-seed7\n# 450 second-order gradients per example and update\n")
    (tmp_path / "run.toml").write_text(printed)
    run = settings.change(TrainConfig(), settings.read_file(tmp_path / "run.toml"))
    assert (run.recipe, run.weight, run.seed, run.precision) == ("mnist/ig-norm", 0.1, 7, "tf32")


def test_a_file_changes_the_recipe_and_words_change_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('recipe = "mnist/ig-norm"\nweight = 0.5\nm = 20\n')
    run = resolve(None, config=file, words=["m=30"])
    assert (run.recipe, run.weight, run.m, run.eps) == ("mnist/ig-norm", 0.5, 30, 0.3)
    assert resolve("fashion-mnist/ig-norm", config=file, words=[]).eps == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('recipe = "mnist/ig-nrom"\nweight = 0.5\n', "did you mean 'mnist/ig-norm'"),
        ("recipe = 5\nweight = 0.5\n", "expected the name of a recipe .* got recipe = 5"),
        ('recipe = nan\ndataset = "mnist"\nmethod = "madry"\n', "expected the name of a recipe .* got recipe = nan"),
        ("weight = 0.5\n", "no recipe given"),
    ],
)
def test_a_file_that_does_not_say_what_to_train_is_refused(tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        resolve(None, config=tmp_path / "run.toml", words=[])


def test_a_file_may_be_a_whole_configuration(tmp_path):
    run = TrainConfig(recipe="mine", dataset="mnist", method="madry", eps=0.2)
    (tmp_path / "run.toml").write_text(settings.to_toml(run))
    assert resolve(None, config=tmp_path / "run.toml", words=[]) == run
    (tmp_path / "short.toml").write_text('dataset = "mnist"\nmethod = "madry"\n')
    assert resolve(None, config=tmp_path / "short.toml", words=["eps=0.2"]) == replace(run, recipe="custom")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mnist/ig-nrom"], "did you mean 'mnist/ig-norm'"),
        (["mnist"], "unknown recipe 'mnist'"),
        ([], "no recipe given: name one, such as fashion-mini/ig-norm"),
        (["mnist/ig-norm", "--set", "wieght=1"], "did you mean 'weight'"),
        (["mnist/ig-norm", "--precision", "fp8"], "precision cannot be 'fp8'"),
        (["mnist/ig-norm", "--config", "nowhere.toml"], "config.json of a run, got nowhere.toml"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(InvalidInput, match=message):
        raise invoke(*words, "--dry-run").exception


def test_a_run_directory_given_as_a_recipe_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    says = f"expected a recipe, got the run directory {tmp_path}: .robattr train --out {tmp_path}. continues it, "
    for command in (("train",), ("sweep", "--over", "m=1,2")):
        with pytest.raises(InvalidInput, match=says):
            raise CliRunner().invoke(app, [*command, str(tmp_path)]).exception


def test_train_continue_and_begin_anew(tmp_path):
    out = tmp_path / "run"
    first = invoke("fashion-mini/ig-norm", *QUICK, "--out", str(out), "--device", "cpu")
    assert first.exit_code == 0
    assert first.stdout.startswith(f"{out}  2 steps  validation accuracy ")
    config = json.loads((out / "config.json").read_text())
    assert (config["recipe"], config["steps"]) == ("fashion-mini/ig-norm", 2)
    again = invoke("fashion-mini/ig-norm", *QUICK, "--out", str(out), "--device", "cpu")
    assert (again.exit_code, "all 2 steps were done before (--fresh begins anew)" in again.stderr) == (0, True)
    assert invoke("--out", str(out), "--device", "cpu").exit_code == 0  # the directory says what it is
    other = invoke("fashion-mini/ig-norm", *QUICK, "--seed", "1", "--out", str(out), "--device", "cpu")
    assert isinstance(other.exception, CheckpointError)
    fresh = invoke("fashion-mini/ig-norm", *QUICK, "--seed", "1", "--out", str(out), "--device", "cpu", "--fresh")
    assert fresh.exit_code == 0
    assert json.loads((out / "config.json").read_text())["seed"] == 1


def test_train_makes_what_it_starts_from_once(tmp_path, monkeypatch):
    shorten_recipes(monkeypatch)
    chain_recipes(monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = ["fashion-mini/ig-sum-norm", "--device", "cpu"]
    done = invoke(*words, "--out", "a")
    assert done.exit_code == 0, done.output
    assert "starts from fashion-mini/first, which is trained first" in done.output
    start = Path("runs/fashion-mini/first-seed0")
    assert json.loads(Path("a/config.json").read_text())["warm_start"] == start.as_posix()
    weights = load_file(start / "model.safetensors")
    kept = start.stat().st_mtime_ns
    again = invoke(*words, "--out", "b", "--set", "lr=1e-30", "--set", "steps=1")
    assert again.exit_code == 0, again.output
    assert "trained first" not in again.output
    assert start.stat().st_mtime_ns == kept
    for name, value in load_file("b/model.safetensors").items():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-12)
    shutil.rmtree(start)
    resumed = invoke(*words, "--out", "a")
    assert resumed.exit_code == 0, resumed.output
    assert not start.exists(), "a run that has begun does not need what it started from"
    monkeypatch.setenv("WORLD_SIZE", "2")
    run = replace(recipes.get("fashion-mini/ig-sum-norm"), seed=9)
    fixed = train_warm_start(run, device="cpu", data_dir=None)
    assert fixed.warm_start == "runs/fashion-mini/first-seed9", "several processes look for it, and do not train it"
    assert not Path(fixed.warm_start).exists()


def test_a_sweep_over_seeds_starts_each_from_its_own(tmp_path, monkeypatch):
    shorten_recipes(monkeypatch)
    chain_recipes(monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "fashion-mini/ig-sum-norm", "--over", "seed=4,5", "--examples", "0", "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--out", "s"])
    assert done.exit_code == 0, done.output
    starts = [json.loads(Path(f"s/seed={n}/config.json").read_text())["warm_start"] for n in (4, 5)]
    assert starts == [f"runs/fashion-mini/first-seed{n}" for n in (4, 5)]
    assert [json.loads((Path(p) / "config.json").read_text())["seed"] for p in starts] == [4, 5]


def test_a_run_that_names_a_recipe_from_python_is_told_what_to_do(tmp_path):
    run = replace(recipes.get("fashion-mini/natural"), warm_start="mnist/madry-tuned", steps=1)
    with pytest.raises(CheckpointError, match=r"no weights to start from: .*Train that run first"):
        train(run, tmp_path / "run", device="cpu")


def test_python_m_is_the_same_program_and_errors_are_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "robattr", "train", "mnist/ig_norm"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("robattr: unknown recipe 'mnist/ig_norm'; did you mean 'mnist/ig-norm'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory", "a/x"),
            "cannot read or write a/x (Not a directory): choo",
        ),
        (
            FileExistsError(errno.EEXIST, "File exists", "a"),
            "cannot read or write a (File exists): choose another --out",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "a"), "cannot read or write a (Permission denied): choose"),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write (No space left on device): free some space"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot write (Read-only file system): make it writable"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 766.00 MiB. GPU 0 has a total of 139.80 GiB"),
            "CUDA out of memory. Tried to allocate 766.00 MiB: end other processes on the device",
        ),
    ],
)
def test_what_the_system_refuses_is_one_line(monkeypatch, capsys, error, says):
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"robattr: {says}")


@pytest.mark.parametrize("error", [OSError("no number"), OSError(errno.EIO, "broken"), RecursionError("too deep")])
def test_an_error_that_nothing_foresaw_is_one_line_and_a_file(monkeypatch, capsys, tmp_path, error):
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.run()
    assert ended.value.code == 1
    (said,) = capsys.readouterr().err.splitlines()
    (file,) = tmp_path.iterdir()
    assert said.startswith(f"robattr: an unexpected error in version {__version__} ({type(error).__name__}: {error})")
    assert said.endswith(f"the traceback is in {file}")
    assert "Traceback" in file.read_text()
    assert str(error) in file.read_text()


def test_data_are_verified_without_colour_where_none_is_wanted(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    words = ["data", "verify", "fashion-mini"]
    plain, coloured = (
        CliRunner().invoke(app, words, color=True, env={"FORCE_COLOR": "1", "TERM": "xterm", **more}).stdout
        for more in ({"NO_COLOR": "1"}, {})
    )
    assert plain.split() == ["fashion-mini", "verified"]
    assert "\x1b[32mverified" in coloured


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", rb"\u03b5 = 1"), ("utf-8", "ε = 1".encode())])
def test_letters_that_a_terminal_lacks_are_spelled_out(monkeypatch, encoding, shown):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    monkeypatch.setattr(cli, "app", lambda: print("ε = 1", flush=True))
    cli.run()
    assert raw.getvalue().strip() == shown


def test_names_from_outside_reach_the_terminal_escaped(monkeypatch, capsys):
    """An escape sequence in a name could retitle the terminal, or write to its clipboard."""
    evil = "runs/\x1b]0;owned\x07\u202ename\nrobattr: fine"

    def app() -> None:
        warnings.warn(f"skipped {evil}", stacklevel=1)
        raise RobattrError(f"no run {evil}")

    monkeypatch.setattr(cli, "app", app)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            cli.run()
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 2
    assert "\\x1b]0;owned\\x07\\u202ename" in said
    assert not set(said) & {"\x1b", "\x07", "\u202e"}

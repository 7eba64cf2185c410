"""`robattr train` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from robattr.cli import app
from robattr.cli.train import resolve
from robattr.errors import CheckpointError, InvalidInput
from robattr.train import settings
from robattr.train.run import Run

QUICK = [f"--set={word}" for word in ("steps=2", "batch=8", "attack_steps=1", "m=2", "m_attack=1")]


def invoke(*words):
    return CliRunner().invoke(app, ["train", *words])


def test_recipes_are_listed():
    listed = invoke("--list").stdout
    assert "mnist/ig-sum-norm" in listed
    assert "fashion-mini/natural" in listed


def test_a_dry_run_prints_what_config_reads_back(tmp_path):
    printed = invoke("mnist/ig-norm", "--set", "weight=0.1", "--seed", "7", "--precision", "tf32", "--dry-run").stdout
    assert printed.startswith("# runs/mnist/ig-norm-seed7\n# 450 second-order gradients per example and update\n")
    (tmp_path / "run.toml").write_text(printed)
    run = settings.change(Run(), settings.read_file(tmp_path / "run.toml"))
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
        ("recipe = 5\nweight = 0.5\n", "unknown recipe '5'"),
        ("weight = 0.5\n", "say what to train"),
    ],
)
def test_a_file_that_does_not_say_what_to_train_is_refused(tmp_path, text, message):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        resolve(None, config=tmp_path / "run.toml", words=[])


def test_a_file_may_be_a_whole_configuration(tmp_path):
    run = Run(recipe="mine", dataset="mnist", method="madry", eps=0.2)
    (tmp_path / "run.toml").write_text(settings.to_toml(run))
    assert resolve(None, config=tmp_path / "run.toml", words=[]) == run
    (tmp_path / "short.toml").write_text('dataset = "mnist"\nmethod = "madry"\n')
    assert resolve(None, config=tmp_path / "short.toml", words=["eps=0.2"]) == replace(run, recipe="custom")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mnist/ig-nrom"], "did you mean 'mnist/ig-norm'"),
        (["mnist"], "unknown recipe 'mnist'"),
        ([], "say what to train"),
        (["mnist/ig-norm", "--set", "wieght=1"], "did you mean 'weight'"),
        (["mnist/ig-norm", "--precision", "fp8"], "precision cannot be 'fp8'"),
        (["mnist/ig-norm", "--config", "nowhere.toml"], "no configuration file nowhere.toml"),
    ],
)
def test_mistakes_are_named(words, message):
    with pytest.raises(InvalidInput, match=message):
        raise invoke(*words, "--dry-run").exception


def test_train_resume_and_refuse(tmp_path):
    out = tmp_path / "run"
    first = invoke("fashion-mini/ig-norm", *QUICK, "--out", str(out), "--device", "cpu")
    assert first.exit_code == 0
    assert first.stdout.startswith(f"{out}  2 steps  validation accuracy ")
    config = json.loads((out / "config.json").read_text())
    assert (config["recipe"], config["steps"]) == ("fashion-mini/ig-norm", 2)
    again = invoke("fashion-mini/ig-norm", *QUICK, "--out", str(out), "--device", "cpu")
    assert isinstance(again.exception, CheckpointError)
    resumed = invoke("--resume", "--out", str(out), "--device", "cpu")  # the directory says what it is
    assert resumed.exit_code == 0


def test_python_m_is_the_same_program_and_errors_are_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "robattr", "train", "mnist/ig_norm"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("robattr: unknown recipe 'mnist/ig_norm'; did you mean 'mnist/ig-norm'")
    assert done.stderr.count("\n") == 1

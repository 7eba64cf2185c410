"""`robattr audit`, `harden` and `doctor`: options, messages, exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from audit_fixtures import factory, folder
from robattr.cli import app
from robattr.cli._own_model import open_model
from robattr.models import save_model

HERE = Path(__file__).parents[1]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    folder(tmp_path / "images", ("<b>a", "b", "[red]c"))
    (tmp_path / "images" / "b" / "torn.png").write_bytes(b"\x89PNG")
    save_model(factory(), tmp_path / "weights.safetensors")
    return tmp_path


def run(*words: str):
    return CliRunner().invoke(app, [*words], catch_exceptions=True)


def test_ctrl_c_says_that_the_same_command_continues(place: Path, monkeypatch) -> None:
    def interrupted(*args, watch, **settings) -> None:
        watch("paper ig", 0, 6)
        raise KeyboardInterrupt

    monkeypatch.setattr("robattr.auditing.record.evaluate", interrupted)
    said = run("audit", "audit_fixtures:factory", "--data", "images", "--device", "cpu", "--points", "2")
    assert said.exit_code == 130, said.output
    assert "the same command continues" in said.output


def test_the_audit_command(place: Path) -> None:
    model = ("audit_fixtures:blank", "--weights", "weights.safetensors")
    small = ("--iterations", "1", "--points", "2", "--examples", "6", "--device", "cpu", "--protocol", "paper")
    said = run("audit", *model, "--data", "images", "--mean", "0,0,0", "--std", "1,1,1", *small)
    assert said.exit_code == 0, said.output
    for words in ("this runs its code", "1 files are not readable images", "the explanations", "→", "wrote audit.html"):
        assert words in said.output
    text = (place / "audit.html").read_text(encoding="utf-8")
    assert "Files that were skipped" in text
    assert "torn.png" in text
    assert str(place) not in text
    assert "<b>a" not in text
    wrong = run("audit", *model, "--data", "images", "--eps", "__import__('os')", *small)
    assert "expected a number" in str(wrong.exception)
    names = place / "names.txt"
    names.write_text("b\n[red]c\n", encoding="utf-8-sig")
    wrong = run("audit", *model, "--data", "images", "--classes", "names.txt", "-o", "other.html", *small)
    assert "not among the 2 class names" in str(wrong.exception)


def test_the_doctor_command(place: Path) -> None:
    good = run("doctor", "audit_fixtures:factory", "--data", "images", "--device", "cpu", "--batch", "2")
    assert good.exit_code == 0, good.output
    assert "second derivatives exist" in good.output
    for shape in ("3,8,8.5", "abc", "0,8,8"):
        wrong = run("doctor", "audit_fixtures:factory", "--shape", shape)
        assert "whole numbers such as 3,224,224" in str(wrong.exception)
    both = run("doctor", "audit_fixtures:factory", "--data", "images", "--shape", "3,8,8", "--device", "cpu")
    assert "leave one of them out" in both.output
    bad = run("doctor", "audit_fixtures:probable", "--shape", "3,8,8", "--device", "cpu")
    assert bad.exit_code == 1
    assert "drop the softmax" in bad.output


def test_a_run_of_the_users_own_network_is_rebuilt_by_its_factory(place: Path) -> None:
    trained = place / "trained"
    trained.mkdir()
    net = factory()
    with torch.no_grad():
        net.head.bias.add_(1.0)
    save_model(net, trained / "model.safetensors")
    (trained / "config.json").write_text(json.dumps({"model": "audit_fixtures:factory", "dataset": "images"}))
    found = open_model("trained", None, trust=True)
    assert torch.equal(found.head.bias, net.head.bias)


def test_a_model_without_its_factory_is_explained(place: Path) -> None:
    for name in ("audit_fixtures", "my.package", "missing.safetensors"):
        assert f"{name}:factory" in str(run("doctor", name).exception)


def test_the_harden_command(place: Path) -> None:
    model = ("audit_fixtures:factory", "--data", "images", "--device", "cpu")
    words = ("harden", *model, "--objective", "ig-norm", "--eps", "8/255", "--held-out", "0.25")
    small = ("--steps", "1", "--batch", "4", "--iterations", "1", "--points", "2", "--examples", "4")
    said = run(*words, *small, "--set", "attack_steps=1", "--set", "m=2", "--freeze", "stem")
    assert said.exit_code == 0, said.output
    assert "before: " in said.stdout
    assert "after: " in said.stdout
    assert f"<title>Hardening {model[0].rpartition('/')[2]}</title>" in (place / "hardened" / "report.html").read_text()
    assert (place / "hardened" / "hardened" / "model.safetensors").exists()
    wrong = run(*words, *small, "--batch-norm", "melted", "-o", "elsewhere")
    assert "batch_norm must be" in str(wrong.exception)


def test_weights_hardened_behind_a_preprocessing_are_refused_without_it(place: Path) -> None:
    save_model(factory(), place / "model.safetensors")
    (place / "preprocessing.json").write_text('{"mean": [0.5], "std": [0.2]}')
    for command in ("audit", "harden", "doctor"):
        words = (command, "audit_fixtures:factory", "--data", "images", "--weights", "model.safetensors")
        assert "--mean and --std in preprocessing.json" in str(run(*words).exception)
    assert run("doctor", *words[1:], "--mean", "0.5", "--std", "0.2", "--device", "cpu").exit_code == 0
    assert run("doctor", *words[1:], "--mean", "0.5,0.5,0.5", "--std", "0.2", "--device", "cpu").exit_code == 0
    for other in (("--mean", "0.5"), ("--mean", "0.4", "--std", "0.2")):
        assert "hardened with Preprocessing(mean=(0.5,), std=(0.2,))" in str(run(*words, *other).exception)


def test_weights_that_carry_code_are_refused(place: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(place / "owned"),))

    torch.save({"stem.weight": Evil()}, place / "evil.pt")
    said = run("audit", "audit_fixtures:blank", "--weights", "evil.pt", "--data", "images")
    assert "refused" in str(said.exception)
    assert not (place / "owned").exists()

"""`robattr certify`: options, output, mistakes."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from audit_fixtures import factory, folder
from robattr.certificates import Challenge
from robattr.cli import app, certify
from robattr.models import save_model

SMALL = ("--examples", "6", "--samples", "20", "--sigma", "0.1", "--alpha", "0.1", "--device", "cpu", "--maps", "sg")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    folder(tmp_path / "images")
    save_model(factory(), tmp_path / "weights.safetensors")
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["certify", *words], catch_exceptions=True)


def test_the_command_says_what_is_certified_and_what_the_radius_means(place: Path) -> None:
    said = run("audit_fixtures:factory", "--data", "images", "--radius", "2/255,0.02", *SMALL)
    assert said.exit_code == 0, said.output
    for words in (
        "6 examples × 22 noisy copies; everything takes about",
        "Certified at level 0.9 for each example",
        "Radius 0.02: one value by 5.1 of 255 grey levels, or each of the 192 values by 0.368",
        "K = 6. Accuracy on noisy copies:",
        "wrote certificates",
    ):
        assert words in said.output
    made = json.loads((place / "certificates" / "sg.json").read_text(encoding="utf-8"))
    assert [row["radius"] for row in made["radii"]] == [2 / 255, 0.02]
    assert made["dataset"] == "images"
    assert str(place) not in json.dumps(made)


def test_a_command_that_is_repeated_says_that_all_is_there(place: Path) -> None:
    words = ("audit_fixtures:factory", "--data", "images", "--radius", "0.02", *SMALL)
    first, again = run(*words), run(*words)
    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "noisy copies; everything takes about" in first.output
    assert "everything takes" not in again.output
    assert "certify sg: all 132 noisy copies were done before (--fresh begins anew)" in again.output
    more = run(*words, "--examples", "8")
    assert "sg: 2 of 8 examples × 22 noisy copies; everything" in more.output


def test_too_few_copies_to_certify_anything_are_named(place: Path) -> None:
    words = ("audit_fixtures:factory", "--data", "images", *SMALL, "--examples", "2")
    assert "cannot certify" not in run(*words, "--radius", "0.02").output
    too_far = run(*words, "--radius", "0.02,0.2")  # Φ⁻¹((0.1/3)^(1/20)) = 1.01, and σ = 0.1
    assert "20 noisy copies cannot certify an answer beyond a radius of 0.101, even if all agree" in too_far.output
    too_few = run(*words, "--samples", "10", "--alpha", "0.001", "--out", "few")
    assert "10 noisy copies cannot certify an answer at any radius, even if all agree" in too_few.output


@dataclass(frozen=True)
class Short(Challenge):
    steps: int = 1
    draws: int = 2


def test_an_attack_is_reported(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("robattr.auditing.certify"), "Challenge", Short)
    words = ("audit_fixtures:blank", "--weights", "weights.safetensors", "--data", "images", "--radius", "0.02")
    said = run(*words, "--attack", *SMALL)
    assert said.exit_code == 0, said.output
    assert "Attacked within 0.02 (answer, cosine, topk): 0 certificates of 6 examples broken" in said.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--radius", "far"), "--radius: expected a number such as 0.03 or 8/255, got 'far'"),
        (("--top", "1e99"), "--top: expected a number of at most 3.4e+38, got '1e99'"),
        (("--bounds", "1,0"), "--bounds: expected two rising numbers"),
        (("--sigma", "0"), "sigma above 0"),
        (("--maps", "igg"), "unknown attribution map"),
        (("--seed", "99999999999999999999"), "expected a seed of at least 0, below 2**63, got 99999999999999999999"),
    ],
)
def test_mistyped_options(place: Path, words: tuple[str, str], said: str) -> None:
    found = run("audit_fixtures:factory", "--data", "images", *SMALL, *words)
    assert said in str(found.exception)


def test_class_names_are_one_for_each_output(place: Path) -> None:
    (place / "names.txt").write_text("a\nb\nc\nd\n")
    found = run("audit_fixtures:factory", "--data", "images", "--classes", "names.txt", *SMALL)
    assert "expected 3 class names, one for each output of the model in order, got 4" in str(found.exception)


def test_interval_bounds_are_shown_beside_an_attack(place: Path) -> None:
    said = run("audit_fixtures:factory", "--data", "images", "--interval", "1/255", "--examples", "6")
    assert said.exit_code == 0, said.output
    for words in ("accuracy", "certified: no x' in the ball", "an attack reaches", "Half of the bounds are at most"):
        assert words in said.output


def test_options_that_interval_bounds_do_not_use_are_refused(place: Path) -> None:
    interval = ("audit_fixtures:factory", "--data", "images", "--interval", "1/255")
    found = run(*interval, "--sigma", "0.1", "--samples", "1000", "--attack", "-o", "elsewhere", "--seed", "1")
    assert "got --sigma, --samples, --attack, --out: leave them out" in str(found.exception)
    signature = inspect.signature(certify.certify)
    assert set(certify.SMOOTHED) < set(signature.parameters)

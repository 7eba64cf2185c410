"""`robattr.certify`: the user's model, wrapped as in an audit."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

import robattr
from audit_fixtures import Attentive, Plain, bars, taught
from robattr.attacks import from_callable
from robattr.errors import InvalidInput

SMALL = {"samples": 20, "sigma": 0.1, "radius": 0.02, "alpha": 0.1, "device": "cpu"}


def test_certify_wraps_the_model_as_an_audit_does() -> None:
    """A model with .logits, preprocessing inside, labels that are its own answers."""
    x, y = bars(6)
    net = taught(Attentive(), *bars(30))
    found = robattr.certify(net, x, y, map="sg", **SMALL)
    assert found.at(0.02).inside.shape == (6, 64)
    assert found.summary["k"] == 6
    plain = taught(Plain(), *bars(30))
    scaled = robattr.certify(plain, x, map="captum:Saliency", preprocessing={"mean": 0.1, "std": 0.5}, **SMALL)
    assert scaled.smoothing.sigma == 0.1
    wide = robattr.certify(plain, 255 * x[:2], bounds=(0, 255), map="sg", samples=10, device="cpu")
    assert (wide.smoothing.sigma, wide.summary["radii"][0]["radius"]) == (0.25 * 255, 0.1 * 255)
    answers = plain.eval()((x - 0.1) / 0.5).argmax(dim=1)
    assert [r["label"] for r in scaled.records] == answers.tolist()
    assert scaled.summary["map"] == "captum-Saliency"


def test_a_map_of_the_users_several_radii_and_an_attack(tmp_path: Path) -> None:
    x, y = bars(3)
    net = taught(Plain(), *bars(30))
    own = from_callable(lambda model, x, y: x.detach().square(), name="mine", guide=robattr.attacks.simple_gradient())
    settings = {**SMALL, "radius": [0.01, 0.02, 0.01]}  # a radius that is given twice counts once
    titles: list[str] = []
    found = robattr.certify(
        net, x, y, map=own, attack=robattr.certificates.Challenge(steps=1, draws=2), out=tmp_path / "made",
        watch=lambda title, done, total, unit: titles.append(title), **settings,
    )  # fmt: skip
    assert [a["settings"]["radius"] for a in found.summary["attacks"]] == [0.01, 0.02]
    assert sorted(p.name for p in (tmp_path / "made").glob("*.json")) == [
        "mine-attack-0.01.json", "mine-attack-0.02.json", "mine.json",
    ]  # fmt: skip
    assert set(titles) == {"certify mine", "attack mine within 0.01", "attack mine within 0.02"}


def test_the_cost_is_announced_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = bars(3)

    class Stop(Exception):
        pass

    def announce(examples: robattr.certificates.Examples, left: int, seconds: float) -> None:
        assert seconds > 0
        assert len(examples.x) == left == 3
        raise Stop

    monkeypatch.setattr(
        import_module("robattr.auditing.certify"), "run", lambda *_, **__: pytest.fail("began before it told")
    )
    with pytest.raises(Stop):
        robattr.certify(taught(Plain(), *bars(30)), x, y, map="sg", announce=announce, **SMALL)


def test_only_what_is_not_recorded_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = bars(6)
    net, said = taught(Plain(), *bars(30)), []

    def run(count: int, **change: object) -> None:
        robattr.certify(
            net, x[:count], y[:count], map="sg", out=tmp_path, **{**SMALL, **change},
            announce=lambda examples, left, seconds: said.append((left, seconds)),
        )  # fmt: skip

    monkeypatch.setattr(import_module("robattr.auditing.certify"), "seconds_per_copy", lambda _: 0.5)
    few = robattr.certificates.Challenge(steps=1, draws=2)
    run(4)
    run(6)
    run(6, radius=0.03)
    run(2, attack=few)
    run(2, attack=few)
    run(6, fresh=True)
    copies = 22
    attacks = 4 * copies + 4 * 1 * 2 * 3
    assert said == [(4, 4 * copies / 2), (2, 2 * copies / 2), (0, 0), (0, 2 * attacks / 2), (0, 0), (6, 6 * copies / 2)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"map": "sgg"}, "unknown attribution map"),
        ({"sigma": -1.0}, "sigma above 0"),
        ({"radius": 0.0}, "radii above 0"),
    ],
)
def test_mistakes_are_refused(change: dict[str, object], said: str) -> None:
    x, y = bars(3)
    with pytest.raises(InvalidInput, match=said):
        robattr.certify(Plain(), x, y, **{**SMALL, "map": "sg", **change})
    with pytest.raises(InvalidInput, match=r"expected x of shape \(B, ...\)"):
        robattr.certify(Plain(), x[0, 0, 0], map="sg", **SMALL)
    for labels in (y[:2], y[0]):
        with pytest.raises(InvalidInput, match=r"expected y of shape \(3,\), one class per example"):
            robattr.certify(Plain(), x, labels, map="sg", **SMALL)


def test_probabilities_instead_of_logits_are_refused() -> None:
    x, y = bars(3)
    with pytest.raises(InvalidInput, match="got probabilities"):
        robattr.certify(torch.nn.Sequential(taught(Plain(), *bars(30)), torch.nn.Softmax(1)), x, y, map="sg", **SMALL)


def test_an_audit_shows_certificates_when_asked(tmp_path: Path) -> None:
    net, few = taught(Plain(), *bars(30)), robattr.certificates.Smoothing(0.1, 40, 0.1)
    settings = {
        "maps": "sg",
        "protocol": "paper",
        "examples": 6,
        "steps": 1,
        "device": "cpu",
        "out": tmp_path / "a.html",
    }
    without = robattr.audit(net, bars(), **settings)
    assert "What no attack can move" not in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert without.run.certificates == ()
    found = robattr.audit(net, bars(), certify=few, **settings)  # continues the audit
    assert "What no attack can move" in (tmp_path / "a.html").read_text(encoding="utf-8")
    (certified,) = found.run.certificates
    assert [row["radius"] for row in certified.summary["radii"]] == [0.05, 0.1, 0.25]
    assert certified.summary["settings"]["sigma"] == 0.1
    assert [r["id"] for r in certified.records] == [r["id"] for r in found.run.evaluations[0].records]

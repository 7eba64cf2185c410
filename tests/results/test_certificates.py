"""The section of certificates, and the committed records: no attack within the radius is below its bound."""

from __future__ import annotations

import pytest

from results.certificates import CASES, read, section


def estimate(value: float | None) -> dict[str, float | None]:
    return {"value": value, "low": value, "high": value, "n": 2}


def test_the_section_shows_bounds_beside_what_attacks_reached() -> None:
    row = {key: estimate(0.5) for key in ("answer", "share", "inside", "overlap", "cosine")}
    attack = {
        "settings": {"claim": 25.5, "radius": 76.5}, "examples": 2, "worst": {"overlap": 6.0, "cosine": 0.9},
        "broken": {"answer": 0, "pixels": 1, "overlap": 0, "cosine": 2},
    }  # fmt: skip
    made = {
        "run": "zoo/net", "map": "ig", "k": 8, "examples": 2, "device": "cpu", "versions": {"torch": "2"},
        "bounds": [0.0, 255.0],
        "settings": {"points": 5, "sigma": 0.25, "samples": 500, "alpha": 0.001},
        "columns": {"nat_acc": estimate(0.9), "noisy_acc": estimate(0.8)},
        "radii": [{"radius": 25.5, **row}],
        "per_example": {"overlap": [[2], [4]], "cosine": [[0.5], [0.7]]},
        "attacks": [attack],
    }  # fmt: skip
    text = section([made])
    assert "| `zoo/net` | ig | 2 | 500 | 0.1 | 90.0% | 80.0% | 50.00% [50.0, 50.0] |" in text
    assert "| 0.1 | 0.3 | 0 of 2 | 1 of 2 | 0 of 2 | 2 of 2 | 37.5% / 75.0% | 0.600 / 0.900 |" in text
    assert section([]) == ""


def test_no_committed_certificate_is_broken_within_its_radius() -> None:
    attacked = 0
    for made, case in zip(read(), CASES, strict=True):
        assert (made["run"], made["examples"], made["settings"]["samples"]) == (case.model, case.examples, case.samples)
        bound = made["per_example"]
        times = [found["settings"]["radius"] / found["settings"]["claim"] for found in made["attacks"]]
        assert times == pytest.approx(case.attacked)
        for found in (found for found, each in zip(made["attacks"], times, strict=True) if each == 1):
            at = [row["radius"] for row in made["radii"]].index(found["settings"]["claim"])
            reached, attacked = found["per_example"], attacked + found["examples"]
            assert reached["id"] == bound["id"]
            assert not any(reached["pixels"])
            for b in range(found["examples"]):
                assert reached["answer"][b] > 0.5 or not bound["answer"][b][at]
                assert reached["overlap"][b] >= bound["overlap"][b][at]
                assert reached["cosine"][b] >= bound["cosine"][b][at]
    assert attacked >= 100

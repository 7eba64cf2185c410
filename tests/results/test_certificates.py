"""The section of certificates, and the committed records: no attack within the radius is below its bound."""

from __future__ import annotations

from results.certificates import ATTACKED, EXAMPLES, read, section


def estimate(value: float | None) -> dict[str, float | None]:
    return {"value": value, "low": value, "high": value, "n": 2}


def test_the_section_shows_bounds_beside_what_attacks_reached() -> None:
    row = {key: estimate(0.5) for key in ("answer", "share", "inside", "overlap", "cosine")}
    attack = {
        "settings": {"claim": 0.1, "radius": 0.3}, "examples": 2, "worst": {"overlap": 6.0, "cosine": 0.9},
        "broken": {"answer": 0, "pixels": 1, "overlap": 0, "cosine": 2},
    }  # fmt: skip
    made = {
        "run": "zoo/net", "map": "ig", "k": 8, "examples": 2, "device": "cpu", "versions": {"torch": "2"},
        "settings": {"points": 5, "sigma": 0.25, "samples": 500, "alpha": 0.001},
        "columns": {"nat_acc": estimate(0.9), "noisy_acc": estimate(0.8)},
        "radii": [{"radius": 0.1, **row}],
        "per_example": {"overlap": [[2], [4]], "cosine": [[0.5], [0.7]]},
        "attacks": [attack],
    }  # fmt: skip
    text = section([made])
    assert "| `zoo/net` | 0.1 | 90.0% | 80.0% | 50.00% [50.0, 50.0] |" in text
    assert "| 0.1 | 0.3 | 0 of 2 | 1 of 2 | 0 of 2 | 2 of 2 | 37.5% / 75.0% | 0.600 / 0.900 |" in text
    assert section([]) == ""


def test_no_committed_certificate_is_broken_within_its_radius() -> None:
    attacked = 0
    for made in read():
        assert made["examples"] == EXAMPLES == 100
        at = [row["radius"] for row in made["radii"]].index(ATTACKED)
        bound, within = made["per_example"], [a for a in made["attacks"] if a["settings"]["radius"] == ATTACKED]
        for found in within:
            reached, attacked = found["per_example"], attacked + 1
            assert reached["id"] == bound["id"]
            assert not any(reached["pixels"])
            for b in range(EXAMPLES):
                assert reached["answer"][b] > 0.5 or not bound["answer"][b][at]
                assert reached["overlap"][b] >= bound["overlap"][b][at]
                assert reached["cosine"][b] >= bound["cosine"][b][at]
    assert attacked >= 1

"""The verdict of an audit, computed from its records."""

from __future__ import annotations

from typing import Any

import pytest

from audit_runs import Written, column, evaluation, run
from robattr.reporting.run_results import RunResults
from robattr.reporting.verdict import judge, strictest, verdict


def counts(found: RunResults) -> tuple[str, str]:
    """Protocol and map of the evaluation that counts."""
    summary = strictest(found).summary
    return summary["protocol"], summary["map"]


@pytest.mark.parametrize(
    ("topk", "half", "level"),
    [
        (0.8, 0.05, "holds"),
        (0.72, 0.05, "partly"),
        (0.4, 0.05, "fragile"),
        (0.52, 0.05, "partly"),
        (0.33, 0.25, "fragile"),
        (None, 0, "unclear"),
    ],
)
def test_levels(topk: float | None, half: float, level: str) -> None:
    assert judge(column(topk, half)) == level
    if topk is not None:
        assert judge({**column(topk, half), "n": 9}) == "unclear"  # too few to say


def test_an_unfinished_audit_is_unclear_unless_fragile() -> None:
    asked = {"protocols": ["paper", "strict"], "maps": ["ig"]}
    half = verdict(run(evaluation("paper", "ig", 0.9), **asked))
    assert half.level == "unclear"
    assert half.doubts == ("the audit is unfinished: still missing are strict protocol, ig maps",)
    assert half.next_steps[0].startswith("Finish the audit")
    assert verdict(run(evaluation("paper", "ig", 0.3), **asked)).level == "fragile"
    whole = verdict(run(evaluation("paper", "ig", 0.9), evaluation("strict", "ig", 0.8), **asked))
    assert (whole.level, whole.doubts) == ("holds", ())


def test_the_strictest_evaluation_decides() -> None:
    lax, stern, other = evaluation("paper", "ig", 0.9), evaluation("strict", "ig", 0.4), evaluation("strict", "sg", 0.2)
    assert counts(run(other, lax, stern)) == ("strict", "ig")
    assert counts(run(other, lax)) == ("strict", "sg")
    found = verdict(run(other, lax, stern))
    assert found.level == "fragile"
    assert "(ig maps, strict protocol)" in found.headline
    assert "at most ε = 0.03137 (inputs from 0 to 1) in any value" in found.headline
    assert "40.00% [35.0, 45.0] of the 10 most important" in found.headline
    assert any("paper protocol, ig maps: 90.00% [85.0, 95.0] kept." in said for said in found.findings)
    assert any("sg maps: 20.00% [15.0, 25.0] kept: they cannot be relied on." in said for said in found.findings)


def test_alarms_make_the_verdict_unclear_unless_fragile() -> None:
    found = verdict(run(evaluation("strict", "ig", 0.9, alarms=["gradients are masked"])))
    assert found.level == "unclear"
    assert "until the doubts about the measurement are settled" in found.headline
    assert found.doubts == ("gradients are masked",)
    assert "warnings of the measurement" in found.next_steps[0]
    assert not any("retraining" in step or "more examples" in step for step in found.next_steps)
    # What did move, moved: doubts cannot make a fragile model better.
    assert verdict(run(evaluation("strict", "ig", 0.3, alarms=["gradients are masked"]))).level == "fragile"


@pytest.mark.parametrize("topk", [0.6, 0.9])
@pytest.mark.parametrize(
    ("protocol", "more", "doubt", "remedy"),
    [
        ("strict", {"alarms": ["gradients are masked"]}, "gradients are masked", "warnings of the measurement"),
        ("strict", {"noise": 0.3}, "random noise of the same ε keeps less of the map (30%)", "more --iterations"),
        ("paper", {"never_kept": 0.4}, "40% of the attacked examples count as unmoved", "strict protocol, where"),
    ],
)
def test_doubts_make_the_verdict_unclear_unless_fragile(
    topk: float, protocol: str, more: dict[str, Any], doubt: str, remedy: str
) -> None:
    found = verdict(run(evaluation(protocol, "ig", topk, **more)))
    assert found.level == "unclear"
    assert "until the doubts about the measurement are settled" in found.headline
    assert len(found.doubts) == 1
    assert found.doubts[0].startswith(doubt)
    assert remedy in found.next_steps[0]
    assert not any("robattr harden" in step or "retraining" in step for step in found.next_steps)
    assert verdict(run(evaluation(protocol, "ig", 0.2, **{"noise": 0.05, **more}))).level == "fragile"
    beside = run(evaluation(protocol, "ig", 0.2), evaluation(protocol, "sg", topk, **more))
    assert "they are not judged" in "\n".join(verdict(beside).findings)
    assert "holds best" not in "\n".join(verdict(beside).next_steps)


def test_small_effects_are_not_doubts() -> None:
    for protocol, more in (
        ("paper", {"never_kept": 0.05}),
        ("strict", {"never_kept": 0.4}),
        ("strict", {"noise": 0.55}),
    ):
        assert verdict(run(evaluation(protocol, "ig", 0.6, **more))).level == "partly"


@pytest.mark.parametrize(
    ("topk", "noise", "said"),
    [
        (0.4, 0.9, "keeps 90%: only an attack moves them"),
        (0.2, 0.5, "keeps 50%: random noise moves them too"),
        (0.85, 0.9, "keeps 90%: the attack does little more"),
        (0.9, 0.85, "keeps 85%: the attack does not do more"),
    ],
)
def test_the_sentence_about_random_noise(topk: float, noise: float, said: str) -> None:
    assert said in verdict(run(evaluation("strict", "ig", topk, noise=noise))).findings[0]


def test_findings_mention_reservations() -> None:
    def told(*evaluations: Written) -> str:
        return "\n".join(verdict(run(*evaluations)).findings)

    assert "20% of the attacked examples" in told(evaluation("paper", "ig", 0.9, never_kept=0.2))
    assert "which raises" in told(evaluation("paper", "ig", 0.9, never_kept=0.2))
    assert "they have no score" in told(evaluation("strict", "ig", 0.9, never_kept=0.2))
    assert "at least this far" in told(evaluation("paper", "ig", 0.9), evaluation("paper", "captum-Saliency", 0.9))
    assert "at least this far" not in told(evaluation("paper", "ig", 0.9))


def test_next_steps_follow_from_the_findings() -> None:
    def advice(*evaluations: Written) -> str:
        return "\n".join(verdict(run(*evaluations)).next_steps)

    assert "robattr harden" in advice(evaluation("strict", "ig", 0.4))
    assert "robattr harden" not in advice(evaluation("strict", "ig", 0.9))
    hardened = "\n".join(verdict(run(evaluation("strict", "ig", 0.4), recipe="harden")).next_steps)
    assert "Harden it further" in hardened
    assert "robattr harden" not in hardened
    assert "retraining" in advice(evaluation("strict", "ig", 0.9))
    assert "strict protocol" in advice(evaluation("paper", "ig", 0.9))
    assert "strict protocol" not in advice(evaluation("strict", "ig", 0.9))
    assert "order of the classes" in advice(evaluation("strict", "ig", 0.9, accuracy=0.2))
    assert "sg holds best" in advice(evaluation("strict", "ig", 0.4), evaluation("strict", "sg", 0.8))
    few = [evaluation("strict", name, topk) for name, topk in (("ig", 0.4), ("sg", 0.8))]
    few[1][0]["columns"]["topk"]["n"] = 6
    assert "holds best" not in advice(*few), "nothing is said with fewer than ten"
    assert r"'second\x1b[0m' is the most fragile" in advice(evaluation("strict", "ig", 0.7)).replace("\\\\", "\\")
    wide = evaluation("strict", "ig", 0.6)
    wide[0]["columns"]["topk"] = column(0.6, 0.1)
    assert "more than 20 examples" in advice(wide)
    nothing = run(evaluation("strict", "ig", None))
    assert verdict(nothing).level == "unclear"
    assert "more examples" in "\n".join(verdict(nothing).next_steps)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"cosine": 0.99}, "hardly depend on the image (mean cosine 0.99"),
        ({"gains": {"random": 0.2, "edges": 0.0}}, "better than the edges of the image does (insertion gain 0.0000 ["),
        ({"gains": {"random": 0.04, "edges": 0.2}}, "better than a random order of the pixels does"),
    ],
)
def test_maps_that_explain_nothing_do_not_hold(more: dict[str, Any], reason: str) -> None:
    found = verdict(run(evaluation("strict", "ig", 0.9, **more)))
    assert found.level == "vacuous"
    assert found.headline.startswith("The explanations are not shown to explain the predictions")
    assert reason in found.headline
    doubted = "+0.000 [-0.050, +0.050] against the order of the edges" in "\n".join(found.findings)
    assert doubted == ("edges of" in reason)
    assert "Do not rely on these maps" in found.next_steps[0]
    assert not any("retraining" in step for step in found.next_steps)
    assert verdict(run(evaluation("strict", "ig", 0.3, **more))).level == "fragile"
    assert verdict(run(evaluation("strict", "ig", 0.9, alarms=["masked"], **more))).level == "vacuous"
    beside = verdict(run(evaluation("strict", "ig", 0.3), evaluation("strict", "sg", 0.95, **more)))
    assert any("sg maps: 95.00%" in said and "not shown to explain" in said for said in beside.findings)
    assert "holds best" not in "\n".join(beside.next_steps)


def test_of_a_table_the_same_features_may_matter_in_every_row() -> None:
    """It has no edges, by which an image is told."""
    table = evaluation("strict", "ig", 0.9, gains={"random": 0.2, "constant": 0.1}, cosine=0.99)
    assert verdict(run(table)).level == "holds"


def test_a_map_is_preferred_to_one_that_keeps_nothing() -> None:
    none = evaluation("strict", "ig", 0.0)
    none[0]["columns"]["topk"] = {"value": 0.0, "low": 0.0, "high": 0.0, "n": 20}
    assert "Of the audited maps sg holds best" in "\n".join(
        verdict(run(none, evaluation("strict", "sg", 0.6))).next_steps
    )


def test_maps_that_explain_something_hold() -> None:
    found = verdict(run(evaluation("strict", "ig", 0.9)))
    assert found.level == "holds"
    said = "\n".join(found.findings)
    assert "order of the map: +0.200 [+0.150, +0.250] against a random order, +0.200 [" in said
    tables = evaluation("strict", "ig", 0.9, gains={"random": 0.2, "constant": 0.1})  # not images: no edges
    assert verdict(run(tables)).level == "holds"
    centred = verdict(run(evaluation("strict", "ig", 0.9, gains={"random": 0.2, "edges": 0.2, "constant": -0.2})))
    assert centred.level == "holds"
    assert "The constant order finds the pixels that matter sooner" in "\n".join(centred.findings)


def test_an_older_audit_without_faithfulness_is_not_said_to_hold() -> None:
    old = evaluation("strict", "ig", 0.9, gains={})
    del old[0]["same_class_cosine"]
    found = verdict(run(old))
    assert found.level == "unclear"
    assert found.doubts == ("whether the maps explain the predictions was not measured",)
    assert "Audit again" in found.next_steps[0]
    for topk, level in ((0.6, "partly"), (0.2, "fragile")):
        assert verdict(run(evaluation("strict", "ig", topk, gains={}, noise=0.9))).level == level

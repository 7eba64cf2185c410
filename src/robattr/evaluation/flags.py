"""Flags: reasons to doubt a score, found in the summary of an evaluation. A flagged row is shown as flagged.

zero gradients    the loss, or the map that the attack climbs, has no gradient
masked gradients  a search without gradients, or the whole pixel range, shows what the gradients hide
twin far          the map of the sharpest twin is not the network's, so that attacks along it miss
noise stronger    random noise lowers a score more than the attacks do
transfer stronger another model's gradients do (`RunResults.flags`: it takes two evaluations)
not converged     the attack was still lowering the scores when it ended
label not kept    examples without a score, because no iterate kept their label
no map            examples whose map is constant or not finite
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from robattr.evaluation.scores import SATURATED

SOME = 0.1  # a share of examples without a gradient
UNKEPT = 0.02  # a share of examples without a label-keeping iterate
NEAR = 0.9  # cosine of the maps of a network and its sharpest twin
TRANSFER = "transfer stronger"


def flags(summary: Mapping[str, Any]) -> list[str]:
    """The flags of an evaluation, each once."""
    return list(dict.fromkeys(flag for flag, _ in doubts(summary)))


def alarms(summary: Mapping[str, Any]) -> list[str]:
    """Warnings that a reader needs before trusting the scores, one sentence each."""
    return [sentence for _, sentence in doubts(summary)]


def doubts(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(flag, sentence) for every reason to doubt the scores."""
    found, under = summary["diagnostics"], summary["diagnostics"]["accuracy_under"]
    score, control = (summary["columns"][name]["value"] for name in ("kendall", "noise_kendall"))
    if (share := found["vanishing_loss"]) > SOME:
        yield (
            "zero gradients",
            f"the loss gradient is exactly zero on {share:.0%} of the examples: do not trust Adv Acc",
        )
    if (share := found["vanishing_map"]) > SOME:
        yield (
            "zero gradients",
            f"the attribution attack had no direction on {share:.0%} of the examples: do not trust its scores",
        )
    if score is not None and control is not None and control < score - SATURATED:
        yield "noise stronger", f"random noise of the same ε scores lower ({control:.3f}) than the attack ({score:.3f})"
    for name, words in (("margin", "PGD on the margin"), ("search", "a search without gradients")):
        if under["pgd"] - under[name] > 0.15:
            yield (
                "masked gradients",
                f"{words} leaves {under[name]:.0%} correct where the protocol's PGD leaves {under['pgd']:.0%}",
            )
    if under["unbounded"] > 0.2:
        yield (
            "masked gradients",
            f"PGD over the whole pixel range leaves {under['unbounded']:.0%} correct: gradients are masked",
        )
    yield from _strict_doubts(found)
    if (fall := found["still_falling"]) > SATURATED:
        last = "attacks" if "converged" in found else "tenth of iterations"
        yield "not converged", f"the attack had not converged: its last {last} lowered the scores by {fall:.3f}"
    if summary["never_kept"] >= UNKEPT:
        yield "label not kept", f"on {summary['never_kept']:.0%} of the examples no iterate kept the label"
    if summary["excluded"]:
        yield "no map", f"{summary['excluded']} correct examples have constant or non-finite maps, and no score"


def _strict_doubts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Doubts from what each attack of `strict` found; none under `paper`."""
    for key, flag, words in (
        ("noise_advantage", "noise stronger", "random noise of the same ε"),
        ("search_advantage", "masked gradients", "a search without gradients"),
    ):
        if (found.get(key) or 0.0) > SATURATED:
            yield flag, f"{words} lowers a score by {found[key]:.3f} more than all attacks by gradients, on average"
    near = found.get("twin_cosine")
    if near is not None and near < NEAR:
        yield "twin far", f"the maps of the network and of its sharpest twin have a cosine of {near:.2f} only"

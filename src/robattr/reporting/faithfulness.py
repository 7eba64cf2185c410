"""Whether the maps of an evaluation explain the predictions: the table, and what is missing to say so.

A map that does not explain anything can be perfectly robust, so robustness is only worth something together with this.
"""

from __future__ import annotations

from collections.abc import Sequence

from robattr.metrics.columns import COLUMN, FAITHFULNESS
from robattr.reporting.groups import Group
from robattr.reporting.run_results import EvaluationResults
from robattr.reporting.tables import Table, cell_of, table

CONSTANT = 0.95  # a mean cosine between the maps of different images above this: the map hardly depends on the image
CONTROLS = {"insertion_over_random": "a random order of the pixels", "insertion_over_edges": "the edges of the image"}


def faithfulness_table(groups: Sequence[Group]) -> Table | None:
    """One row per evaluation, a dash where it was not measured; None where no evaluation has it."""
    known = any(measured(e) for group in groups for _, e in group.members)
    return table(groups, FAITHFULNESS, "Faithfulness of attributions ({kinds})") if known else None


def measured(e: EvaluationResults) -> bool:
    """Whether the evaluation has faithfulness scores; older ones have none."""
    return e.column("insertion_over_random").get("value") is not None


def unexplained(e: EvaluationResults) -> tuple[str, ...]:
    """Why the maps are not shown to explain the predictions; () where they are, or where it was not measured.

    They must insert the pixels that matter sooner than a random order and than the edges of the image do, with the
    whole interval of the gain above 0, and differ between images. Neither a map that ignores the model nor one that
    ignores the image does. The features of a table have no edges, and one map for all rows may be right.
    """
    said = []
    for name, words in CONTROLS.items():
        gain = e.column(name)
        if gain.get("value") is not None and not (gain.get("low") or 0) > 0:
            shown = cell_of(COLUMN[name], gain)
            said.append(f"they are not shown to order the pixels better than {words} does (insertion gain {shown})")
    cosine = e.column("same_class_cosine").get("value")
    images = e.column("insertion_over_edges").get("value") is not None
    if images and cosine is not None and cosine >= CONSTANT:
        said.append(f"they hardly depend on the image (mean cosine {cosine:.2f} between different images of a class)")
    return tuple(said)


def finding(e: EvaluationResults) -> str:
    """The gains of the clean and the attacked map over the controls, in one sentence or two."""
    orders = {
        "insertion_over_random": "a random order",
        "insertion_over_edges": "the order of the edges",
        "insertion_over_constant": "a constant order from the centre",
    }
    gains = {words: _gain(e, key) for key, words in orders.items()}
    said = ", ".join(f"{gain} against {words}" for words, gain in gains.items() if gain)
    attacked = _gain(e, "attacked_over_constant")
    after = f"; in the order of the attacked map, {attacked} against the constant one" if attacked else ""
    ahead = e.column("insertion_over_constant").get("high")
    behind = " The constant order finds the pixels that matter sooner than these maps." if (ahead or 0) < 0 else ""
    return (
        "Mean probability of the label while the pixels are put into an input of zeros in the order of the map: "
        f"{said}{after}.{behind}"
    )


def _gain(e: EvaluationResults, key: str) -> str:
    """`+0.074 [-0.028, +0.172]`; "" where it was not measured."""
    gain = e.column(key)
    if gain.get("value") is None:
        return ""
    ends = "" if gain.get("low") is None else " [{low:+.3f}, {high:+.3f}]".format(**gain)
    return f"{gain['value']:+.3f}{ends}"

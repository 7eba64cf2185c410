"""The columns of every table: name, meaning, unit, and which direction is better. All commands and pages use them.

The first four are the paper's: natural accuracy, accuracy under PGD, and the top-k intersection and Kendall's rank
correlation of the maps before and after the attack. `never_kept` is the share of examples on which no iterate kept the
prediction: the reference implementation scores those 1, so a large share makes a fragile model look robust.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column; `meaning` explains it to a reader, without a full stop.

    `share`: printed in per cent; `mark_best`: the best value of a group is marked in tables.
    """

    key: str
    title: str
    meaning: str
    share: bool = False
    mark_best: bool = False
    higher_is_better: bool = True

    def show(self, value: float | None) -> str:
        """`72.08%` or `0.6747`."""
        if value is None:
            return "–"
        return f"{100 * value:.2f}%" if self.share else f"{value:.4f}"

    def show_interval(self, low: float | None, high: float | None) -> str:
        """`[70.1, 74.0]`, in per cent of a share; nothing without an interval (None or NaN)."""
        if low is None or high is None or low != low or high != high:
            return ""
        scale, digits = (100, 1) if self.share else (1, 3)
        return f"[{scale * low:.{digits}f}, {scale * high:.{digits}f}]"

    def show_difference(self, difference: float, *, unit: bool = True) -> str:
        """`+3.39 points` of a share, else `+0.0042`."""
        return f"{100 * difference:+.2f}{' points' * unit}" if self.share else f"{difference:+.4f}"


PAPERS = (
    Column("nat_acc", "Nat Acc.", "share of the examples that are classified correctly", share=True),
    Column(
        "adv_acc",
        "Adv Acc.",
        "share of the examples that are classified correctly after an attack of the same ε on the prediction",
        share=True,
    ),
    Column(
        "topk",
        "TopK Inter.",
        "share of the k most important pixels (or features) of the map that the attack leaves among the k",
        share=True,
        mark_best=True,
    ),
    Column("kendall", "Rank Corr.", "Kendall's τ-b between the maps before and after the attack", mark_best=True),
)
COLUMNS = (
    *PAPERS,
    Column(
        "never_kept",
        "Never kept",
        "share of the attacked examples on which no attack step kept the prediction: the paper's protocol scores them "
        "1, the strict one gives them no score",
        share=True,
        higher_is_better=False,
    ),
)
FURTHER = (
    Column("spearman", "Spearman", "Spearman's ρ between the maps before and after the attack"),
    Column("cosine", "Cosine", "cosine of the maps before and after the attack"),
    Column("ssim", "SSIM", "structural similarity of the maps before and after the attack"),
    Column(
        "mass_center",
        "Mass center shift",
        "how far the attack moves the centre of mass of the map, in pixels",
        higher_is_better=False,
    ),
    Column(
        "ceiling",
        "Tie ceiling",
        "the highest Rank Corr. that a map can reach which keeps the order but breaks all ties, such as those of black "
        "pixels, as nearly every perturbation does",
    ),
    Column(
        "noise_topk",
        "Noise TopK",
        "the control: TopK Inter. under the worst of ten draws of random noise of the same ε, without an attack",
        share=True,
    ),
    Column("noise_kendall", "Noise Rank", "the control: Rank Corr. under that noise"),
    Column(
        "insertion",
        "Insertion",
        "mean probability of the label while the pixels are put into an input of zeros in the order of the map",
    ),
    Column("insertion_attacked", "Insertion, attacked map", "Insertion in the order of the attacked map"),
    Column(
        "deletion",
        "Deletion",
        "mean probability of the label while the pixels are taken out in the order of the map",
        higher_is_better=False,
    ),
)
FAITHFULNESS = (  # does the map explain the prediction? Gains are positive where it does (`metrics.faithfulness`)
    Column(
        "insertion_over_random",
        "Ins. over random",
        "mean probability of the label while the pixels are put into an input of zeros in the order of the map, minus "
        "the same in a random order; above 0 the map explains something",
        mark_best=True,
    ),
    Column(
        "insertion_over_edges", "Ins. over edges", "the same against the order of the image's edges", mark_best=True
    ),
    Column(
        "insertion_over_constant",
        "Ins. over constant",
        "the same against one constant order from the centre",
        mark_best=True,
    ),
    Column(
        "attacked_over_constant",
        "Attacked over constant",
        "the same in the order of the attacked map, against the constant order",
        mark_best=True,
    ),
    Column(
        "deletion_below_random",
        "Del. below random",
        "mean probability of the label while the pixels are taken out in a random order, minus the same in the order "
        "of the map; above 0 is better",
    ),
    Column("deletion_below_constant", "Del. below constant", "the same against the constant order from the centre"),
    Column(
        "infidelity",
        "Infidelity",
        "share of the logit's changes that the attribution does not predict; 0 is best, 1 predicts nothing",
        higher_is_better=False,
    ),
    Column(
        "completeness_gap",
        "Completeness gap",
        "how far the attribution is from summing to the logit's change from black, as a share of that change",
        higher_is_better=False,
    ),
    Column(
        "same_class_cosine",
        "Same-class cosine",
        "mean cosine between the maps of different images of a class; 1 is a constant map",
        higher_is_better=False,
    ),
)
COLUMN = {column.key: column for column in (*COLUMNS, *FURTHER, *FAITHFULNESS)}
CONTROLLED = tuple(
    COLUMN[key]
    for key in ("nat_acc", "adv_acc", "topk", "noise_topk", "kendall", "noise_kendall", "ceiling", "never_kept")
)
"""Each score beside what limits it: random noise, and ties."""

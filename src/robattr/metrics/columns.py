"""The columns of every table: name, unit, and which direction is better. Commands, pages and files take them from here.

The first four are the paper's: natural accuracy, accuracy under PGD, and the top-k intersection and Kendall's rank
correlation of the maps before and after the attack. `never_kept` is the share of examples on which no iterate kept the
prediction: the reference implementation scores those 1, so a large share makes a fragile model look robust.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column. `share`: printed in per cent; `mark_best`: the best value of a group is marked in tables."""

    key: str
    title: str
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
    Column("nat_acc", "Nat Acc.", share=True),
    Column("adv_acc", "Adv Acc.", share=True),
    Column("topk", "TopK Inter.", share=True, mark_best=True),
    Column("kendall", "Rank Corr.", mark_best=True),
)
COLUMNS = (*PAPERS, Column("never_kept", "Never kept", share=True, higher_is_better=False))
FURTHER = (
    Column("spearman", "Spearman"),
    Column("cosine", "Cosine"),
    Column("ssim", "SSIM"),
    Column("mass_center", "Mass center shift", higher_is_better=False),
    Column("ceiling", "Tie ceiling"),
    Column("noise_topk", "Noise TopK", share=True),
    Column("noise_kendall", "Noise Rank"),
    Column("insertion", "Insertion"),
    Column("insertion_attacked", "Insertion, attacked map"),
    Column("deletion", "Deletion", higher_is_better=False),
)
FAITHFULNESS = (  # does the map explain the prediction? Gains are positive where it does (`metrics.faithfulness`)
    Column("insertion_over_random", "Ins. over random", mark_best=True),
    Column("insertion_over_edges", "Ins. over edges", mark_best=True),
    Column("insertion_over_constant", "Ins. over constant", mark_best=True),
    Column("attacked_over_constant", "Attacked over constant", mark_best=True),
    Column("deletion_below_random", "Del. below random"),
    Column("deletion_below_constant", "Del. below constant"),
    Column("infidelity", "Infidelity", higher_is_better=False),
    Column("completeness_gap", "Completeness gap", higher_is_better=False),
    Column("same_class_cosine", "Same-class cosine", higher_is_better=False),
)
COLUMN = {column.key: column for column in (*COLUMNS, *FURTHER, *FAITHFULNESS)}

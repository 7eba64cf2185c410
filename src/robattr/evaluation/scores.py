"""Names of the scores of a record, and numbers that readers of records share; without torch."""

from __future__ import annotations

CURVE = 20  # points of the curve over iterations
SATURATED = 0.01  # a change of a score that no longer counts
PROBED = 16  # correctly classified examples for the slower diagnostics
COMPARED = ("topk", "kendall")  # the scores that decide convergence, and that are recorded for each attack
AGREEMENT = (*COMPARED, "spearman", "cosine", "ssim", "mass_center")
CONTROLS = ("foreground_topk", "foreground_kendall", "ceiling", "noise_topk", "noise_kendall")
GAINS = {  # score: the area of a curve, and the one that is subtracted; positive is better
    "insertion_over_random": ("insertion", "insertion_random"),
    "insertion_over_constant": ("insertion", "insertion_constant"),
    "insertion_over_edges": ("insertion", "insertion_edges"),
    "attacked_over_constant": ("insertion_attacked", "insertion_constant"),
    "deletion_below_random": ("deletion_random", "deletion"),
    "deletion_below_constant": ("deletion_constant", "deletion"),
}
AREAS = ("insertion", "insertion_attacked", "deletion")
FAITHFULNESS = (*AREAS, *GAINS, "infidelity", "completeness_gap")


def curve_points(steps: int) -> list[int]:
    """The iterations, counted from 1, of the curve over iterations."""
    return sorted({round(1 + (steps - 1) * i / (CURVE - 1)) for i in range(CURVE)})

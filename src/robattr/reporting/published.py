"""The numbers printed in the paper, to compare ours with.

Source: J. Chen, X. Wu, V. Rastogi, Y. Liang, S. Jha, "Robust Attribution Regularization", NeurIPS 2019. Accuracies and
top-k intersections are shares in [0, 1] here; the paper prints per cent. Top-k is K = 100, for Flower K = 1000.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "Chen et al., Robust Attribution Regularization, NeurIPS 2019"


@dataclass(frozen=True)
class Published:
    """One row of a table of the paper."""

    nat_acc: float
    adv_acc: float
    topk: float
    kendall: float

    def column(self, name: str) -> float | None:
        """The printed value of a column, or None where the paper has no such column."""
        return getattr(self, name) if name in self.__dataclass_fields__ else None


def _rows(printed: dict[str, str]) -> dict[tuple[str, str], Published]:
    """Parse rows printed as `method NA% AA% IN% CO`, by dataset."""
    found = {}
    for dataset, lines in printed.items():
        for line in lines.strip().splitlines():
            method, *numbers = line.split()
            nat, adv, topk, kendall = map(float, numbers)
            row = Published(round(nat / 100, 4), round(adv / 100, 4), round(topk / 100, 4), kendall)
            found[dataset, method] = row
    return found


# Table 1, integrated gradients.
INTEGRATED_GRADIENTS = _rows(
    {
        "mnist": """
            natural     99.17  0.00 46.61 0.1758
            madry       98.40 92.47 62.56 0.2422
            ig-norm     98.74 81.43 71.36 0.2841
            ig-sum-norm 98.34 88.17 72.45 0.3111""",
        "fashion-mnist": """
            natural     90.86  0.01 39.01 0.4610
            madry       85.73 73.01 46.12 0.6251
            ig-norm     85.13 65.95 59.22 0.6171
            ig-sum-norm 85.44 70.26 72.08 0.6747""",
        "gtsrb": """
            natural     98.57 21.05 54.16 0.6790
            madry       97.59 83.24 68.85 0.7520
            ig-norm     97.02 75.24 74.81 0.7555
            ig-sum-norm 95.68 77.12 74.04 0.7684""",
        "flower": """
            natural     86.76  0.00  8.12 0.4978
            madry       83.82 41.91 55.87 0.7784
            ig-norm     85.29 24.26 64.68 0.7591
            ig-sum-norm 82.35 47.06 66.33 0.7974""",
    },
)

DATASETS = tuple(dict.fromkeys(dataset for dataset, _ in INTEGRATED_GRADIENTS))

# Table 3, simple gradient: the attack and the maps use the plain gradient.
SIMPLE_GRADIENT = _rows(
    {
        "mnist": """
            natural     99.17  0.00 16.64 0.0107
            madry       98.40 92.47 47.95 0.2524
            ig-sum-norm 98.34 88.17 61.67 0.2918""",
        "fashion-mnist": """
            natural     90.86  0.01 21.55 0.0734
            madry       85.73 73.01 58.37 0.3947
            ig-sum-norm 85.44 70.26 54.91 0.3674""",
        "gtsrb": """
            natural     98.57 21.05 51.31 0.6000
            madry       97.59 83.24 70.27 0.6965
            ig-sum-norm 95.68 77.12 75.03 0.7151""",
        "flower": """
            natural     86.76  0.00  6.72 0.2996
            madry       83.82 41.91 54.10 0.7282
            ig-sum-norm 82.35 47.06 65.59 0.7503""",
    },
)

# Table 2: MNIST IG-NORM, λ = 1, attack m = 10, by the m of the training integral.
DIFFERENT_M = {
    m: Published(nat, adv, topk, kendall)
    for m, nat, adv, topk, kendall in (
        (10, 0.9854, 0.7805, 0.6714, 0.2574),
        (20, 0.9872, 0.8029, 0.7078, 0.2699),
        (30, 0.9870, 0.8044, 0.7106, 0.2640),
        (40, 0.9879, 0.7341, 0.6476, 0.2733),
        (50, 0.9874, 0.8143, 0.7136, 0.2841),
        (60, 0.9878, 0.8925, 0.6355, 0.2230),
        (70, 0.9880, 0.7478, 0.6737, 0.2556),
        (80, 0.9875, 0.8026, 0.6990, 0.2633),
        (90, 0.9861, 0.7854, 0.7088, 0.2787),
        (100, 0.9859, 0.8936, 0.5970, 0.2210),
    )
}


def published(dataset: str, method: str, *, map_name: str = "ig", m: int | None = None) -> Published | None:
    """The paper's row for a dataset, a method and a kind of map, or None.

    `m` is the number of nodes of the training integral; the paper varies it for MNIST IG-NORM alone.
    """
    if map_name == "ig" and (dataset, method) == ("mnist", "ig-norm") and m is not None:
        return DIFFERENT_M.get(m)
    tables = {"ig": INTEGRATED_GRADIENTS, "sg": SIMPLE_GRADIENT}
    return tables.get(map_name, {}).get((dataset, method))

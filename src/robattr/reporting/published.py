"""The numbers printed in the paper, to compare ours with.

Source: J. Chen, X. Wu, V. Rastogi, Y. Liang, S. Jha, "Robust Attribution Regularization", NeurIPS 2019. Accuracies and
top-k intersections are shares in [0, 1] here; the paper prints per cent. Top-k is K = 100, for Flower K = 1000.
"""

from __future__ import annotations

from collections.abc import Mapping

SOURCE = "Chen et al., Robust Attribution Regularization, NeurIPS 2019"

Published = Mapping[str, float]
"""One row of a table of the paper, by column: nat_acc, adv_acc, topk, kendall."""


def _rows(printed: str) -> dict[tuple[str, str], Published]:
    """Parse lines `dataset method NA% AA% IN% CO`."""
    found: dict[tuple[str, str], Published] = {}
    for line in printed.strip().splitlines():
        dataset, method, *numbers = line.split()
        nat, adv, topk, kendall = map(float, numbers)
        shares = {"nat_acc": nat, "adv_acc": adv, "topk": topk}
        found[dataset, method] = {**{key: round(value / 100, 4) for key, value in shares.items()}, "kendall": kendall}
    return found


# Table 1, integrated gradients.
INTEGRATED_GRADIENTS = _rows("""
    mnist         natural      99.17   0.00  46.61 0.1758
    mnist         madry        98.40  92.47  62.56 0.2422
    mnist         ig-norm      98.74  81.43  71.36 0.2841
    mnist         ig-sum-norm  98.34  88.17  72.45 0.3111
    fashion-mnist natural      90.86   0.01  39.01 0.4610
    fashion-mnist madry        85.73  73.01  46.12 0.6251
    fashion-mnist ig-norm      85.13  65.95  59.22 0.6171
    fashion-mnist ig-sum-norm  85.44  70.26  72.08 0.6747
    gtsrb         natural      98.57  21.05  54.16 0.6790
    gtsrb         madry        97.59  83.24  68.85 0.7520
    gtsrb         ig-norm      97.02  75.24  74.81 0.7555
    gtsrb         ig-sum-norm  95.68  77.12  74.04 0.7684
    flower        natural      86.76   0.00   8.12 0.4978
    flower        madry        83.82  41.91  55.87 0.7784
    flower        ig-norm      85.29  24.26  64.68 0.7591
    flower        ig-sum-norm  82.35  47.06  66.33 0.7974
""")

DATASETS = tuple(dict.fromkeys(dataset for dataset, _ in INTEGRATED_GRADIENTS))

# Table 3, simple gradient: the attack and the maps use the plain gradient.
SIMPLE_GRADIENT = _rows("""
    mnist         natural      99.17   0.00  16.64 0.0107
    mnist         madry        98.40  92.47  47.95 0.2524
    mnist         ig-sum-norm  98.34  88.17  61.67 0.2918
    fashion-mnist natural      90.86   0.01  21.55 0.0734
    fashion-mnist madry        85.73  73.01  58.37 0.3947
    fashion-mnist ig-sum-norm  85.44  70.26  54.91 0.3674
    gtsrb         natural      98.57  21.05  51.31 0.6000
    gtsrb         madry        97.59  83.24  70.27 0.6965
    gtsrb         ig-sum-norm  95.68  77.12  75.03 0.7151
    flower        natural      86.76   0.00   6.72 0.2996
    flower        madry        83.82  41.91  54.10 0.7282
    flower        ig-sum-norm  82.35  47.06  65.59 0.7503
""")

# Table 2: MNIST IG-NORM, λ = 1, attack m = 10, by the m of the training integral (in the place of the method).
_OVER_M = _rows("""
    mnist         10           98.54  78.05  67.14 0.2574
    mnist         20           98.72  80.29  70.78 0.2699
    mnist         30           98.70  80.44  71.06 0.2640
    mnist         40           98.79  73.41  64.76 0.2733
    mnist         50           98.74  81.43  71.36 0.2841
    mnist         60           98.78  89.25  63.55 0.2230
    mnist         70           98.80  74.78  67.37 0.2556
    mnist         80           98.75  80.26  69.90 0.2633
    mnist         90           98.61  78.54  70.88 0.2787
    mnist         100          98.59  89.36  59.70 0.2210
""")
DIFFERENT_M = {int(m): row for (_, m), row in _OVER_M.items()}


def published(dataset: str, method: str, *, map_name: str = "ig", m: int | None = None) -> Published | None:
    """The paper's row for a dataset, a method and a kind of map, or None.

    `m` is the number of nodes of the training integral; the paper varies it for MNIST IG-NORM alone.
    """
    if map_name == "ig" and (dataset, method) == ("mnist", "ig-norm") and m is not None:
        return DIFFERENT_M.get(m)
    tables = {"ig": INTEGRATED_GRADIENTS, "sg": SIMPLE_GRADIENT}
    return tables.get(map_name, {}).get((dataset, method))

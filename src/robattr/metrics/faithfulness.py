"""Faithfulness: whether a map says what the output depends on. A constant map is perfectly robust and explains nothing.

Pixels are removed by setting them to the baseline of the map (0). r_q(x) keeps the share q of the pixels that the map
ranks first, and x − r_q(x) all others; p_y is the probability of the label, z_y its logit.

    insertion    ∫₀¹ p_y(r_q(x)) dq,      higher is better       (Petsiuk et al. 2018)
    deletion     ∫₀¹ p_y(x − r_q(x)) dq,  lower is better
    infidelity   min_β E(β Σ_{i∈W} A_i − Δ_W)² / E Δ_W²,  Δ_W = z_y(x) − z_y(x without W), W random windows
                 (Yeh et al. 2019, normalised): 0 where the attribution A predicts every change, 1 where none
    completeness gap   |Σ A_i − (z_y(x) − z_y(0))| / |z_y(x) − z_y(0)|
    same-class cosine  the mean cosine between the maps of different images of a class: 1 for a constant map

Insertion and deletion depend on the model and the image more than on the map, so they are compared with orders that
know nothing of the model: a random one, a constant one (`centre_first`) and the edges of the image (`edges`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from robattr.errors import InvalidInput
from robattr.metrics._validation import check_maps, rows


def ranks(a: Tensor) -> Tensor:
    """(B, n) int64: 0 for the most important pixel of each map; of equal pixels the lower index comes first."""
    check_maps(a)
    order = (-rows(a)).sort(dim=1, stable=True).indices
    return torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1], device=a.device).expand_as(order))


def pixel_counts(n: int, levels: int) -> list[int]:
    """How many of n pixels are kept at each level: n·(i/levels)², i = 0 … levels, rounded.

    The curves change most while few pixels are kept, so the levels are dense there.
    """
    return [round(n * (i / levels) ** 2) for i in range(levels + 1)]


def area(values: Tensor, counts: list[int]) -> Tensor:
    """∫₀¹ v dq by the trapezoidal rule: `values` (…, levels + 1) are v at the shares counts / counts[-1]."""
    share = torch.tensor(counts, dtype=torch.float64, device=values.device) / counts[-1]
    return torch.trapezoid(values.double(), share, dim=-1)


def infidelity(predicted: Tensor, change: Tensor) -> Tensor:
    """min_β E(β·predicted − change)² / E change² over the windows, both (B, windows): (B,) float64 in [0, 1].

    That is Captum's `infidelity(normalize=True)` in units of E change². nan where nothing changes.
    """
    if predicted.shape != change.shape or predicted.dim() != 2:
        raise InvalidInput(
            f"expected a predicted and an actual change (B, windows), got {tuple(predicted.shape)} and "
            f"{tuple(change.shape)}: measure both on the same windows"
        )
    p, d = predicted.double(), change.double()
    explained = (p * d).sum(1).square() / (p * p).sum(1)
    unexplained = 1 - explained.nan_to_num(0.0) / (d * d).sum(1)  # 0/0: a prediction of 0 explains nothing
    return unexplained.clamp(0, 1)


def class_cosine(maps: Tensor, labels: Tensor) -> Tensor:
    """(B,) float64: the mean cosine of each map with those of the other examples of its class.

    Of all other examples where it is the only one of its class; nan for a single example or a map that is zero.
    """
    check_maps(maps)
    unit = F.normalize(maps.detach().flatten(1).double(), dim=1)
    cosine = unit @ unit.T
    others = ~torch.eye(len(maps), dtype=torch.bool, device=maps.device)
    same = others & (labels[:, None] == labels)
    pairs = torch.where(same.any(1, keepdim=True), same, others)
    mean = cosine.masked_fill(~pairs, 0).sum(1) / pairs.sum(1)
    return mean.masked_fill((unit == 0).all(1), float("nan"))


def centre_first(maps: Tensor) -> Tensor:
    """A constant map of the shape of `maps` (B, …): minus the distance from the centre, the same for every example."""
    distance = torch.zeros(maps.shape[1:], dtype=torch.float64, device=maps.device)
    for axis, length in enumerate(maps.shape[1:]):
        place = torch.arange(length, dtype=torch.float64, device=maps.device) - (length - 1) / 2
        distance += place.square().view(-1, *(1,) * (maps.dim() - 2 - axis))
    return -distance.expand(maps.shape)


def edges(x: Tensor) -> Tensor:
    """The size of Sobel's gradient of images (B, C, H, W), averaged over channels: (B, H, W). It knows no model."""
    if x.dim() != 4:
        raise InvalidInput(f"expected images (B, C, H, W), got shape {tuple(x.shape)}: only images have edges")
    grey = F.pad(x.detach().double().mean(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    kernel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], dtype=grey.dtype, device=x.device)
    both = F.conv2d(grey, torch.stack([kernel, kernel.T])[:, None])
    return both.square().sum(1).sqrt()

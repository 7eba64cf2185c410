"""A direct eager PyTorch port of the reference code: the baseline of every comparison, and an independent check.

Modules are called directly, gradients come from `torch.autograd.grad(create_graph=True)`, parameters require grad
throughout, arithmetic is float32, the rule is the right Riemann sum, and all points of a path are one batch. The port
uses nothing of `robattr`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def right_ends(m: int) -> list[float]:
    """t_k = k/m, k = 1…m: the points of the reference."""
    return [k / m for k in range(1, m + 1)]


def ig(model: nn.Module, x: Tensor, x1: Tensor, y: Tensor, points: Sequence[float]) -> Tensor:
    """IG = (x' − x) ⊙ (1/m) Σ_k ∇_z ℓ_y(x + t_k (x' − x)), with its graph."""
    z = torch.cat([x + t * (x1 - x) for t in points])
    if not z.requires_grad:
        z.requires_grad_()
    loss = F.cross_entropy(model(z), y.repeat(len(points)), reduction="sum")
    (gradient,) = torch.autograd.grad(loss, z, create_graph=True)
    each: Tensor = gradient.unflatten(0, (len(points), len(x)))
    return (x1 - x) * each.mean(0)


def attack_gradient(model: nn.Module, x: Tensor, x1: Tensor, y: Tensor, points: Sequence[float]) -> Tensor:
    """∇_{x'} Σ ‖IG(x, x')‖₁."""
    x1 = x1.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(ig(model, x, x1, y, points).abs().sum(), x1)
    return gradient


@dataclass(frozen=True)
class Attack:
    """The reference's `pgd_attack.py` on the IG loss: x' ← clip(x' + a·sign ∇)."""

    eps: float
    step_size: float
    steps: int
    points: Sequence[float]
    bounds: tuple[float, float]

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, start: Tensor) -> Tensor:
        x1 = start
        for _ in range(self.steps):
            x1 = x1 + self.step_size * attack_gradient(model, x, x1, y, self.points).sign()
            x1 = torch.max(torch.min(x1, x + self.eps), x - self.eps).clamp(*self.bounds)
        return x1


def update(
    model: nn.Module, x: Tensor, x1: Tensor, y: Tensor, *, weight: float, points: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """ℓ(x) and ‖IG(x, x')‖₁ per example; the gradient of Σ ℓ + λ‖IG‖₁ goes to `parameter.grad`."""
    loss = F.cross_entropy(model(x), y, reduction="none")
    penalty = ig(model, x, x1, y, points).abs().flatten(1).sum(1)
    (loss + weight * penalty).sum().backward()
    return loss.detach(), penalty.detach()


def saliency(model: nn.Module, x: Tensor, y: Tensor, points: Sequence[float], *, graph: bool = False) -> Tensor:
    """S = Σ_channels |x ⊙ mean_i ∇ z_y(t_i x)|, scaled to sum H·W, of one example: x (1, C, H, W), S (H, W)."""
    z = torch.cat([x * t for t in points])
    if not z.requires_grad:
        z.requires_grad_()
    (gradient,) = torch.autograd.grad(model(z)[:, int(y)].sum(), z, create_graph=graph)
    s = (gradient.mean(0) * x[0]).abs().sum(0)
    return s * (s.numel() / s.sum())


@dataclass(frozen=True)
class Fragility:
    """The reference's `ig_attack.py` (top-k): one example at a time, SciPy's Kendall after every iteration."""

    eps: float
    alpha: float
    steps: int
    k: int
    bounds: tuple[float, float]
    points: Sequence[float]

    def direction(self, twin: nn.Module, x: Tensor, y: Tensor, top: Tensor) -> Tensor:
        """−∇_x Σ_top S̃(x), S̃ the map of the softplus twin."""
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(-saliency(twin, x, y, self.points, graph=True).flatten()[top].sum(), x)
        return gradient

    def __call__(self, model: nn.Module, twin: nn.Module, x: Tensor, y: Tensor) -> float:
        """The lowest Kendall correlation over the iterates that keep the label; 1 if none does."""
        from scipy.stats import kendalltau

        clean = saliency(model, x, y, self.points)
        label, top = model(x).argmax(), clean.flatten().argsort()[-self.k :]
        lowest, z = 1.0, x
        for _ in range(self.steps):
            z = z + self.alpha * self.direction(twin, z, y, top).sign()
            z = (x + (z - x).clamp(-self.eps, self.eps)).clamp(*self.bounds)
            if model(z).argmax() == label:
                seen = saliency(model, z, y, self.points)
                score = float(kendalltau(clean.flatten().cpu().numpy(), seen.flatten().cpu().numpy()).statistic)
                lowest = min(lowest, score)
        return lowest


class SoftLeaky(nn.Module):
    """a·u + (1 − a)·softplus(u): the reference's smooth leaky ReLU (a = 0: smooth ReLU)."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, u: Tensor) -> Tensor:
        return self.slope * u + (1 - self.slope) * F.softplus(u) if self.slope else F.softplus(u)


def twin(model: nn.Module) -> nn.Module:
    """A copy of the model with every ReLU module replaced by softplus."""
    soft = copy.deepcopy(model)
    for part in list(soft.modules()):
        for name, child in part.named_children():
            if isinstance(child, nn.ReLU):
                setattr(part, name, SoftLeaky(0.0))
            elif isinstance(child, nn.LeakyReLU):
                setattr(part, name, SoftLeaky(child.negative_slope))
    return soft


def kendall_by_pairs(a: Tensor, b: Tensor) -> Tensor:
    """τ-b by the n × n formula, one pair of maps (n,): Σ sign(a_i − a_j) sign(b_i − b_j), normalised."""
    u, v = (a[:, None] - a).sign(), (b[:, None] - b).sign()
    return (u * v).sum(dtype=torch.float64) / (
        u.abs().sum(dtype=torch.float64) * v.abs().sum(dtype=torch.float64)
    ).sqrt()

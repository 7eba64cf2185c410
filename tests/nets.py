"""Small networks and checks that several tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robattr.engine import Step
from robattr.formula.objective import Joint, Rho, Robust


def mlp(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, classes))


def conv(activation: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), activation, nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), activation, nn.Flatten(),
        nn.Linear(16, 3),
    )  # fmt: skip


class Residual(nn.Module):
    """Batch norm, functional and in-place activations, a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.body(F.leaky_relu(self.norm(h), 0.1, inplace=True))
        h = torch.relu_(h)
        return self.head(h.mean((2, 3)))


class Transformer(nn.Module):
    """One encoder layer over 8 tokens: attention's fused kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x.flatten(1).unflatten(1, (8, 8)))).mean(1))


class OwnTanh(torch.autograd.Function):
    """tanh as users write functions of their own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * (1 - torch.tanh(x) ** 2)


class OldTanh(torch.autograd.Function):
    """The same in the older style, which torch.func refuses."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return OwnTanh.backward(ctx, g)


class OwnActivation(nn.Module):
    def __init__(self, function: type[torch.autograd.Function] = OwnTanh) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function.apply(x)
        return out


NETS: dict[str, Callable[[], nn.Module]] = {
    "softplus": lambda: conv(nn.Softplus()),
    "relu": lambda: conv(nn.ReLU()),
    "relu in place": lambda: conv(nn.ReLU(inplace=True)),
    "leaky": lambda: conv(nn.LeakyReLU(0.1)),
    "leaky in place": lambda: conv(nn.LeakyReLU(0.1, inplace=True)),
    "residual with batch norm": Residual,
    "transformer": Transformer,
}


def images(n: int = 3, *, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x, x' (n, 1, 8, 8) in [0, 1], float64, and labels of three classes."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, 8, 8, generator=g, dtype=torch.float64)
    x1 = (x + 0.3 * (2 * torch.rand(x.shape, generator=g, dtype=torch.float64) - 1)).clamp(0, 1)
    return x, x1, torch.arange(n) % 3


def directional(value: Callable[[], Tensor], tensors: list[Tensor], *, h: float = 1e-6, seed: int = 0) -> float:
    """(F(θ + h v) − F(θ − h v)) / 2h for a random direction v over `tensors`, changed in place and put back."""
    total = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            for t, v in zip(tensors, direction(tensors, seed=seed), strict=True):
                t.add_(sign * h * v)
        total.append(float(value().detach()))
        with torch.no_grad():
            for t, v in zip(tensors, direction(tensors, seed=seed), strict=True):
                t.sub_(sign * h * v)
    return (total[0] - total[1]) / (2 * h)


def direction(tensors: list[Tensor], *, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=g, dtype=t.dtype) for t in tensors]


UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
GROWTH = 2.0**14


def assert_rounding(ours: Iterable[Tensor], theirs: Iterable[Tensor], *, growth: float = GROWTH) -> None:
    """‖a − b‖ ≤ growth · u · ‖b‖: two computations of the same numbers in another order, u the unit roundoff.

    `growth` bounds how often rounding is amplified: sums of some thousand terms, through a few layers, forward and
    backward. All of the tensors together, because one of them may be zero but for rounding.
    """
    a, b = (torch.cat([t.detach().flatten() for t in each]) for each in (ours, theirs))
    assert float((a - b).norm()) <= growth * UNIT[b.dtype] * float(b.norm())


def step_of(step: Step, rho: Robust | Joint, x: Tensor, y: Tensor, start: Tensor) -> tuple[Rho, list[Tensor]]:
    """One step from zero gradients: ρ, and the gradients of all parameters."""
    step.model.zero_grad()
    out = step(rho, x, y, start=start)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in step.model.parameters()]
    return out, gradients


def cancelling(pixels: int) -> nn.Module:
    """x ↦ 1000 (A x − (A − B / 1000) x) = B x, of which bf16 keeps rounding alone."""
    first, last = nn.Linear(pixels, 2 * pixels, bias=False), nn.Linear(2 * pixels, 3, bias=False)
    a, b = torch.rand(2, 3, pixels, generator=torch.Generator().manual_seed(2))
    first.weight.data = 1e3 * torch.eye(pixels).repeat(2, 1)
    last.weight.data = torch.cat([a, b / 1e3 - a], dim=1)
    return nn.Sequential(nn.Flatten(), first, last)

"""The residual networks of the paper for GTSRB and Flower: no batch norm, standardisation inside the graph.

Images x: (B, C, H, W) in [0, 255], H and W divisible by 4. Logits: (B, classes).
The paper says 5 residual units for both datasets; its code builds 6 (GTSRB) and 3 (Flower), and so do we.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robattr.errors import InvalidInput
from robattr.models.architecture import architecture, positive
from robattr.models.smooth import Smooth

SLOPE = 0.1  # of the leaky ReLU
WIDTH = 16  # channels of the first stage; each of the next two doubles them


class Standardise(nn.Module):
    """x̂ = (x − μ) / max(σ, 1/√(HWC)): μ and the population σ over all HWC values of each image.

    Part of the differentiated graph: attributions, radii and the black reference live in [0, 255]. The reference
    writes max(√relu(mean x² − μ²), 1/√(HWC)); √max(mean (x − μ)², 1/(HWC)) is the same number without cancellation,
    and its gradient is finite where σ = 0 (a constant image), where the reference gives NaN.

    `scale` is what one unit of x is worth in [0, 255]: with 255, an image in [0, 1] gives the same x̂ as 255 times it.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean((1, 2, 3), keepdim=True)
        variance = centred.square().mean((1, 2, 3), keepdim=True)
        return centred / variance.clamp(min=self.floor(x) ** 2).sqrt()

    def floor(self, x: Tensor) -> float:
        """The smallest divisor of the standardisation."""
        return 1 / (self.scale * math.sqrt(x[0].numel()))


class SameConv(nn.Conv2d):
    """3×3 convolution without bias under TensorFlow's SAME padding: the odd pixel goes to the bottom and right.

    An even input at stride 2 is padded by (0, 1), not (1, 1): torch's `padding=1` would sample a shifted grid.
    Weights: normal, σ = √(2/(9·out)), that is fan-out, not truncated.
    """

    def __init__(self, channels: int, out: int, *, stride: int = 1) -> None:
        super().__init__(channels, out, 3, stride=stride, bias=False)
        nn.init.normal_(self.weight, std=math.sqrt(2 / (9 * out)))

    def forward(self, x: Tensor) -> Tensor:
        top, bottom = self._same(x.shape[-2])
        left, right = self._same(x.shape[-1])
        if top == bottom and left == right:
            return F.conv2d(x, self.weight, stride=self.stride, padding=(top, left))
        return F.conv2d(F.pad(x, (left, right, top, bottom)), self.weight, stride=self.stride)

    def _same(self, size: int) -> tuple[int, int]:
        stride = self.stride[0]
        total = max((math.ceil(size / stride) - 1) * stride + 3 - size, 0)
        return total // 2, total - total // 2


class Unit(nn.Module):
    """u(x) = conv₂(act(conv₁(act(x)))) + shortcut, without projection weights.

    The shortcut is x, or act(x) in the first unit of the first stage (`after_activation`). Where the width grows it
    is average-pooled 2×2 and zero-padded in channels, half of the new ones on each side.
    """

    def __init__(self, channels: int, out: int, *, stride: int, after_activation: bool) -> None:
        super().__init__()
        self.after_activation = after_activation
        self.grow = (out - channels) // 2
        self.act1 = nn.LeakyReLU(SLOPE)
        self.conv1 = SameConv(channels, out, stride=stride)
        self.act2 = nn.LeakyReLU(SLOPE)
        self.conv2 = SameConv(out, out)

    def forward(self, x: Tensor) -> Tensor:
        active = self.act1(x)
        shortcut = active if self.after_activation else x
        if self.grow:
            shortcut = F.pad(F.avg_pool2d(shortcut, 2), (0, 0, 0, 0, self.grow, self.grow))
        return cast(Tensor, self.conv2(self.act2(self.conv1(active))) + shortcut)


class ResNet(nn.Module):
    """standardise → averages of pool×pool → stem → units (three stages) → act → global average → fc. See `resnet`."""

    def __init__(self, classes: int, units: int, *, channels: int, width: int, scale: float, pool: int) -> None:
        super().__init__()
        self.standardise: nn.Module = Standardise(scale)
        self.pool = pool
        self.stem = SameConv(channels, width)
        self.units = nn.Sequential()
        for stage, out in enumerate((width, 2 * width, 4 * width)):
            for number in range(units):
                stride = 2 if stage > 0 and number == 0 else 1
                first = stage == 0 and number == 0
                self.units.append(Unit(width, out, stride=stride, after_activation=first))
                width = out
        self.act = nn.LeakyReLU(SLOPE)
        self.fc = nn.Linear(width, classes)
        nn.init.uniform_(self.fc.weight, -math.sqrt(3 / width), math.sqrt(3 / width))
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        by = 4 * self.pool
        if x.ndim != 4 or x.shape[1] != self.stem.in_channels or x.shape[2] % by or x.shape[3] % by:
            raise InvalidInput(
                f"expected images (B, {self.stem.in_channels}, H, W) with H and W divisible by {by}, "
                f"got {tuple(x.shape)}: resize them, or build the network with other channels"
            )
        seen = self.standardise(x)
        if self.pool > 1:
            seen = F.avg_pool2d(seen, self.pool)
        features = self.act(self.units(self.stem(seen)))
        return cast(Tensor, self.fc(features.mean((2, 3))))


@architecture
def resnet(
    classes: int, units: int = 2, *, channels: int = 3, width: int = WIDTH, scale: float = 1.0, pool: int = 1
) -> ResNet:
    """Stem 3×3×16, three stages of `units` residual units (16, 32, 64 channels; stride 2 into the last two), FC.

    `width` channels instead of 16 make all stages wider in proportion; `scale` is 255 for images in [0, 1]; with `pool`
    the stem sees averages of pool × pool pixels of the standardised image.

    act is the leaky ReLU of slope 0.1. Its derivative at exactly 0 is 0.1 here (torch's kernel) and 1 in the
    reference (tf.where(x < 0, …)). Values agree everywhere; the derivatives differ only where a pre-activation is
    exactly 0, which for these bias-free layers means a constant image. No quadrature node of the evaluation lies there
    (its black reference is t = 0, excluded by the right and midpoint rules), so the fused kernel is used.
    """
    positive(classes=classes, units=units, channels=channels, width=width, pool=pool)
    if units > 100 or width > 4096:
        raise InvalidInput(f"expected at most 100 units per stage and a width of at most 4096, got {units} and {width}")
    if width % 2 or not (isinstance(scale, int | float) and 0 < scale < math.inf):
        raise InvalidInput(f"expected an even width and a positive scale, got {width!r} and {scale!r}")
    return ResNet(classes, units, channels=channels, width=width, scale=scale, pool=pool)


def gtsrb_resnet() -> ResNet:
    """The paper's network for GTSRB: 43 classes, 2 units per stage, 173,723 parameters."""
    return resnet(43, 2)


def flower_resnet() -> ResNet:
    """The paper's network for Flower: 17 classes, 1 unit per stage, 75,265 parameters."""
    return resnet(17, 1)


def scale_invariant(model: nn.Module, x: Tensor, *, smallest: float = 0.01) -> Tensor:
    """Whether f(t·x) = f(x) for all t ≥ `smallest` near each x, provably: (B,) bool.

    A standardised network sees (x − μ)/σ, which t cancels from, so f is constant along the ray from black and
    ∇f(t·x) = ∇f(x)/t. With nodes t_k and weights w_k the attribution from black is then one gradient,

        IG(0, x) = x ⊙ ∇f(x) · Σ_k w_k/t_k        (right rule, N points: the harmonic number H_N; H_100 = 5.187).

    This is true while the floor of the standard deviation is inactive at every node: smallest · σ(x) > 1/√(HWC), over
    `scale`; i.e. σ(x) > 1.80 for 32×32×3 and 0.45 for 128×128×3 at N = 100. Near the bound (0.1%) the answer is False,
    so that rounding never decides it. The softplus twin has the same property: the standardisation precedes every
    activation. All False for other networks, and for a `ResNet` that does not standardise.
    """
    net = model.twin_of if isinstance(model, Smooth) else model
    first = net.standardise if isinstance(net, ResNet) else None
    if not isinstance(first, Standardise):
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    deviation = x.detach().flatten(1).std(1, correction=0)
    return deviation * smallest > 1.001 * first.floor(x)

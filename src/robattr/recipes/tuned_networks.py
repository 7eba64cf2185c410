"""Networks whose maps hold better than the paper's: those of the tuned recipes, of `additive`, and `smooth_resnet`.

`avgpool_cnn`, `tone_curve_cnn`, `blur_cnn`, `additive_net`, `linear_net`: images x (B, channels, size, size) in [0, 1].
`wide_resnet`, `pooled_resnet`, `smooth_resnet`: images (B, channels, H, W) in [0, 255 / scale]. Logits: (B, classes).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from robattr.errors import InvalidInput
from robattr.models.architecture import architecture
from robattr.models.cnn import paper_layers
from robattr.models.resnet import ResNet, resnet
from robattr.models.softplus import soften


@architecture
def avgpool_cnn(classes: int = 10, *, channels: int = 1, size: int = 28) -> nn.Sequential:
    """`paper_cnn` with average pools and first biases of -0.1.

    A max-pool attributes a window to its largest pixel alone, so that an attack which changes the largest moves the
    whole attribution; an average attributes to every pixel of a stroke. From biases below 0 robust training makes the
    first filters thresholds, ReLU(w·x - b): a background raised by ε < b/w does not pass, and its attribution stays 0.
    """
    net = paper_layers(classes, channels, size, pool=nn.AvgPool2d)
    first = net[0]
    assert isinstance(first, nn.Conv2d)
    assert first.bias is not None
    nn.init.constant_(first.bias, -0.1)
    return net


class ToneCurve(nn.Module):
    """z(x) = x - (1 - a)·min(x, t), pixel by pixel: slope a up to the threshold t, slope 1 above."""

    def __init__(self, threshold: float, slope: float) -> None:
        super().__init__()
        for name, value in (("threshold", threshold), ("slope", slope)):
            if not (isinstance(value, int | float) and 0 <= value < 1):
                raise InvalidInput(f"expected a {name} in [0, 1), got {value!r}")
        self.threshold, self.slope = threshold, slope
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * x + (1 - self.slope) * cast(Tensor, self.relu(x - self.threshold))


@architecture
def tone_curve_cnn(
    classes: int = 10, *, channels: int = 1, size: int = 28, threshold: float = 0.1, slope: float = 0.5
) -> nn.Sequential:
    """`avgpool_cnn` behind `ToneCurve(threshold, slope)`.

    The curve reduces a black background raised by at most `threshold`, so that less of it passes the first layer's
    thresholds. 0.1 is ε of Fashion-MNIST, where half of the pixels are black and one in twenty lies between 0 and 0.1.
    With slope 0 such a background changes neither the logits nor any attribution.
    """
    toe = ToneCurve(threshold, slope)
    return _behind(avgpool_cnn(classes, channels=channels, size=size), toe=toe)


class Blur(nn.Module):
    """z = k ∗ x along rows and columns, k = (w, 1 - 2w, w), black outside the image."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        if not (isinstance(weight, int | float) and 0 <= weight <= 0.25):
            raise InvalidInput(f"expected a blur in [0, 0.25] (the kernel's sides), got {weight!r}")
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        share = 3 * self.weight  # of the mean of three neighbours; the rest is the pixel's own
        for window, padding in (((1, 3), (0, 1)), ((3, 1), (1, 0))):
            x = (1 - share) * x + share * avg_pool2d(x, window, stride=1, padding=padding)
        return x


@architecture
def blur_cnn(
    classes: int = 10,
    *,
    channels: int = 1,
    size: int = 28,
    threshold: float = 0.1,
    slope: float = 0.45,
    blur: float = 1 / 6,
) -> nn.Sequential:
    """`tone_curve_cnn` with `Blur(blur)` behind the tone curve.

    The derivative of the logits is blurred likewise: an attack has fewer fine patterns to use, and neighbouring pixels
    have similar attributions. With blur 1/6 a pixel keeps 4/9 of its own value.
    """
    toe, last = ToneCurve(threshold, slope), Blur(blur)
    return _behind(avgpool_cnn(classes, channels=channels, size=size), toe=toe, blur=last)


class SoftStep(nn.Module):
    """z(x) = tanh(relu(x - t)/w) / tanh((1 - t)/w), pixel by pixel: 0 up to the threshold t, nearly 1 from t + 2w."""

    def __init__(self, threshold: float, width: float) -> None:
        super().__init__()
        if not (isinstance(threshold, int | float) and 0 <= threshold < 1):
            raise InvalidInput(f"expected a threshold in [0, 1), got {threshold!r}")
        if not (isinstance(width, int | float) and 0.01 <= width <= 10):
            raise InvalidInput(f"expected a width in [0.01, 10], got {width!r}")
        self.threshold, self.width = threshold, width
        self.top = math.tanh((1 - threshold) / width)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.relu(x - self.threshold) / self.width) / self.top


class AdditiveNet(nn.Module):
    """f(x) = W·t(x) + g(averages of 2×2 pixels of t(x)), t = SoftStep, g with one hidden layer of softplus."""

    def __init__(self, classes: int, channels: int, size: int, *, hidden: int, threshold: float, width: float) -> None:
        super().__init__()
        if size % 2:
            raise InvalidInput(f"expected an even size, got {size}: 2×2 pixels are averaged")
        self.step = SoftStep(threshold, width)
        self.pixels = nn.Linear(channels * size**2, classes)
        self.blocks = nn.Sequential(
            nn.AvgPool2d(2), nn.Flatten(), nn.Linear(channels * size**2 // 4, hidden), nn.Softplus(),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        t = self.step(x)
        out: Tensor = self.pixels(t.flatten(1)) + self.blocks(t)
        return out


@architecture
def additive_net(
    classes: int = 10, *, channels: int = 1, size: int = 28, hidden: int = 256, threshold: float = 0.1,
    width: float = 0.08,
) -> AdditiveNet:  # fmt: skip
    """A nearly additive network, whose maps an attack can hardly move: W·t(x), and a small network of 2×2 averages.

    Of f(x) = Σ_p w_p·t(x_p), the map is |w_p·(t(x_p) - t(0))| exactly, and no other pixel changes it. t is 0 up to the
    threshold and nearly constant above threshold + 2·width: with the threshold at ε, only pixels between 0 and
    2ε + 2·width can change theirs. The averages add accuracy; each moves by a quarter of what a pixel does.
    """
    return AdditiveNet(classes, channels, size, hidden=hidden, threshold=threshold, width=width)


@architecture
def linear_net(classes: int = 10, *, channels: int = 1, size: int = 28) -> nn.Sequential:
    """f(x) = Wx + b: the control. Its maps are |w_p·x_p|, and change with x_p alone."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size**2, classes))


@architecture
def wide_resnet(classes: int = 10, *, channels: int = 1, scale: float = 255.0) -> ResNet:
    """`resnet` with two units per stage of 32, 64 and 128 channels."""
    return resnet(classes, 2, channels=channels, width=32, scale=scale)


@architecture
def pooled_resnet(classes: int = 10, *, channels: int = 1, scale: float = 255.0) -> ResNet:
    """`wide_resnet` that sees averages of 2×2 pixels: a quarter of the work.

    Four pixels share one derivative: finer detail changes neither the logits nor the gradient, and maps are as smooth
    as half the resolution allows.
    """
    return resnet(classes, 2, channels=channels, width=32, scale=scale, pool=2)


class Centred(nn.Module):
    """z = (s·x - 127.5)/75, the same for all images: s is what one unit of x is worth in [0, 255]."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return (self.scale * x - 127.5) / 75


@architecture
def smooth_resnet(classes: int = 10, *, channels: int = 1, scale: float = 255.0, beta: float = 4.0) -> ResNet:
    """`pooled_resnet` with softplus units of β, `Centred` instead of standardised.

    Nothing is piecewise linear: no map jumps where a unit switches. On a standardised image, IG from black is a single
    gradient; here it averages gradients along its path.
    """
    net = resnet(classes, 2, channels=channels, width=32, scale=scale, pool=2)
    net.standardise = Centred(scale)
    return cast(ResNet, soften(net, beta))


def _behind(net: nn.Sequential, **front: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict([*front.items(), *net.named_children()]))

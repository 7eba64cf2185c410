"""The convolutional networks: the paper's for MNIST and Fashion-MNIST, and a small one for `fashion-mini`.

Images x: (B, channels, size, size) in [0, 1], not normalised. Logits: (B, classes).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from robattr.errors import InvalidInput
from robattr.models.architecture import architecture, positive


@architecture
def paper_cnn(classes: int = 10, *, channels: int = 1, size: int = 28) -> nn.Sequential:
    """conv 5×5×32, ReLU, max-pool 2; conv 5×5×64, ReLU, max-pool 2; FC 1024, ReLU; FC `classes`.

    3,274,634 parameters for 28×28×1 and 10 classes. Stride 1, SAME padding (2 on every side). Weights: normal with
    σ = 0.1 truncated at ±2σ; biases 0.1. The paper (supplement, experiments) gives the layers and defers to its code
    for the rest. The reference flattens (row, column, channel), this one (channel, row, column): the same network up
    to a fixed permutation of fc1's columns, which matters only to someone who ports weights.
    """
    return _cnn(classes, channels, size, pool=nn.MaxPool2d)


@architecture
def avgpool_cnn(classes: int = 10, *, channels: int = 1, size: int = 28) -> nn.Sequential:
    """`paper_cnn` with average pools and first biases of -0.1. Not from the paper.

    A max-pool attributes a window to its winner alone, so that an attack which changes the winner moves the whole
    attribution; an average attributes to every pixel of a stroke. From biases below 0 robust training makes the first
    filters thresholds, ReLU(w·x - b): a background raised by ε < b/w does not pass, and its attribution stays 0.
    """
    net = _cnn(classes, channels, size, pool=nn.AvgPool2d)
    first = net[0]
    assert isinstance(first, nn.Conv2d)
    _fill_bias(first, -0.1)
    return net


class Toe(nn.Module):
    """z(x) = x - (1 - a)·min(x, t), pixel by pixel: a tone curve of slope a up to t, and of slope 1 above."""

    def __init__(self, threshold: float, slope: float) -> None:
        super().__init__()
        self.threshold, self.slope = threshold, slope
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.slope * x + (1 - self.slope) * cast(Tensor, self.relu(x - self.threshold))


@architecture
def tone_curve_cnn(
    classes: int = 10, *, channels: int = 1, size: int = 28, threshold: float = 0.1, slope: float = 0.5
) -> nn.Sequential:
    """`avgpool_cnn` that sees `Toe(threshold, slope)` of the image, in [0, 1]. Not from the paper.

    A black background raised by at most `threshold` arrives as less than it is, so that less of it passes the first
    layer's thresholds. 0.1 is ε of Fashion-MNIST, where half of the pixels are black and one in twenty lies between 0
    and 0.1. With slope 0, a dead zone, nothing of it arrives, neither in the logits nor in any attribution.
    """
    net = avgpool_cnn(classes, channels=channels, size=size)
    return _behind(net, toe=_toe(threshold, slope))


class Blur(nn.Module):
    """z = k ∗ x along rows and columns, k = (w, 1 - 2w, w), black outside the image."""

    def __init__(self, weight: float) -> None:
        super().__init__()
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
    """`tone_curve_cnn` that sees the image through `Blur(blur)` as well, behind its toe. Not from the paper.

    The derivative of the logits is blurred likewise, and an attack has fewer fine patterns to play with: neighbours
    keep their attributions together. With blur 1/6 a pixel keeps 4/9 of itself.
    """
    if not (isinstance(blur, int | float) and 0 <= blur <= 0.25):
        raise InvalidInput(f"expected a blur in [0, 0.25] (the kernel's sides), got {blur!r}")
    net = avgpool_cnn(classes, channels=channels, size=size)
    return _behind(net, toe=_toe(threshold, slope), blur=Blur(blur))


def _toe(threshold: float, slope: float) -> Toe:
    for name, value in (("threshold", threshold), ("slope", slope)):
        if not (isinstance(value, int | float) and 0 <= value < 1):
            raise InvalidInput(f"expected a {name} in [0, 1), got {value!r}")
    return Toe(threshold, slope)


def _behind(net: nn.Sequential, **front: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict([*front.items(), *net.named_children()]))


def _cnn(classes: int, channels: int, size: int, *, pool: type[nn.MaxPool2d] | type[nn.AvgPool2d]) -> nn.Sequential:
    positive(classes=classes, channels=channels, size=size)
    if size % 4:
        raise InvalidInput(f"expected an image size divisible by 4 (two poolings by 2), got {size}")
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=pool(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=pool(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * (size // 4) ** 2, 1024),
            relu3=nn.ReLU(),
            fc2=nn.Linear(1024, classes),
        )
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            _fill_bias(layer, 0.1)
    return net


@architecture
def small_cnn(classes: int = 10, *, channels: int = 1, size: int = 28) -> nn.Sequential:
    """conv 5×5×8 stride 3, ReLU; conv 3×3×24 stride 2, ReLU; FC 64, ReLU; FC `classes`. Not from the paper.

    27,250 parameters for 28×28×1 and 10 classes. Strides instead of pooling make the second derivative cheap enough
    to train IG objectives on two CPU cores, and no max-pool means no arbitrary winner among tied background pixels.
    The windows overlap, so that maps show no grid. Weights: He normal (fan-in); biases 0.
    """
    positive(classes=classes, channels=channels, size=size)
    if size < 9:
        raise InvalidInput(f"expected an image size of at least 9 pixels, got {size}")
    side = (size // 3 - 3) // 2 + 1  # size//3 = (size + 2 − 5)//3 + 1 after conv1
    net = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 8, 5, stride=3, padding=1),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(8, 24, 3, stride=2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
            fc1=nn.Linear(24 * side**2, 64),
            relu3=nn.ReLU(),
            fc2=nn.Linear(64, classes),
        )
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            _fill_bias(layer, 0.0)
    return net


def _fill_bias(layer: nn.Conv2d | nn.Linear, value: float) -> None:
    assert layer.bias is not None
    nn.init.constant_(layer.bias, value)

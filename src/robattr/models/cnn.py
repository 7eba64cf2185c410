"""The convolutional networks: the paper's for MNIST and Fashion-MNIST, and a small one for `fashion-mini`.

Images x: (B, channels, size, size) in [0, 1], not normalised. Logits: (B, classes).
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

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
    return paper_layers(classes, channels, size, pool=nn.MaxPool2d)


def paper_layers(
    classes: int, channels: int, size: int, *, pool: type[nn.MaxPool2d] | type[nn.AvgPool2d]
) -> nn.Sequential:
    """The layers of `paper_cnn`, with `pool` after each convolution."""
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

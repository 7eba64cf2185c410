"""Which network goes with which dataset."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from robattr.errors import InvalidInput, nearest
from robattr.models.cnn import paper_cnn, small_cnn
from robattr.models.resnet import flower_resnet, gtsrb_resnet

DEFAULTS: dict[str, Callable[[], nn.Module]] = {
    "mnist": paper_cnn,
    "fashion-mnist": paper_cnn,
    "gtsrb": gtsrb_resnet,
    "flower": flower_resnet,
    "fashion-mini": small_cnn,
}


def for_dataset(name: str) -> nn.Module:
    """The paper's network for `name` (a small CNN for `fashion-mini`), initialised from torch's global generator.

    Call `torch.manual_seed` first for a reproducible start.
    """
    if name not in DEFAULTS:
        raise InvalidInput(f"no network is known for dataset {name!r}: {nearest(name, DEFAULTS)}")
    return DEFAULTS[name]()

"""Open a reference for use: a run directory, a zoo name or a weights file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from robattr import models
from robattr import recipes as recipes  # registers the networks of the tuned recipes
from robattr.models.weights_file import locate


def load_model(reference: str | Path, *, device: torch.device | str = "cpu") -> nn.Module:
    """The network that `reference` names, in float32 on `device`, in train mode as torch builds modules.

    `reference` is a safetensors file written by `models.save_model`, a run directory with `model.safetensors`, or a
    name in the zoo such as "gtsrb/ig-sum-norm-tuned". torch's random generator keeps its state.
    """
    return models.read_model(locate(reference)).to(device)

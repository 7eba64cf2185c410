"""ONNX files of hardened networks, checked against torch before they are handed out.

The file computes logits from inputs in the units of the data: the preprocessing is part of it, as it is of an audit.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robattr._extras import need
from robattr.auditing.wrapped_model import Preprocessing, wrap
from robattr.engine.files import write_atomically
from robattr.errors import InvalidInput, UnsupportedModel


def export_onnx(
    model: nn.Module, path: str | Path, x: Tensor, *, preprocessing: Preprocessing | Mapping[str, Any] | None = None
) -> Path:
    """Write `model` as an ONNX file x ↦ logits for batches of any size, and compare onnxruntime with torch at `x`.

    x                a batch of at least two inputs, in the units of the data
    preprocessing    dict(mean=…, std=…), as for `robattr.harden`; becomes part of the file

    A file whose logits differ by more than rounding (see `rounding`) is not written.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package, extra="onnx")
    if x.dim() < 2 or len(x) < 2:
        raise InvalidInput(f"expected a batch of two or more inputs to export with, got {tuple(x.shape)}")
    net = wrap(model, preprocessing=preprocessing, device="cpu", copy=True)[0].eval()
    x = x.detach().cpu().float()
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(net, (x,), dynamic_shapes=({0: batch},), dynamo=True, verbose=False)
    assert program is not None
    content = program.model_proto.SerializeToString()
    with torch.no_grad():
        expected, tolerance = net(x), rounding(net, x)
    found = run_onnx(content, x)
    gap = float((found - expected).abs().max())
    if not gap <= tolerance:
        raise UnsupportedModel(
            f"expected ONNX logits within {tolerance:.2g} of torch's, the rounding of float32, got a difference of "
            f"{gap:.2g}: the exporter does not support a layer of this model"
        )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def run_onnx(model: bytes | str | Path, x: Tensor) -> Tensor:
    """The outputs of an ONNX file, or of its content, at x, by onnxruntime on the CPU."""
    runtime = need("onnxruntime", extra="onnx")
    session = runtime.InferenceSession(
        model if isinstance(model, bytes) else str(model), providers=["CPUExecutionProvider"]
    )
    (out,) = session.run(None, {session.get_inputs()[0].name: np.ascontiguousarray(x.detach().cpu().float().numpy())})
    return torch.from_numpy(out)


@torch.no_grad()
def rounding(net: nn.Module, x: Tensor) -> float:
    """How far two evaluations of one network in float32 may differ at x: √n · 2 max(|f₃₂ − f₆₄|, u·|f₆₄|).

    f₃₂ is torch's value and f₆₄ the one in float64, so |f₃₂ − f₆₄| is the rounding error of one evaluation. Another
    library sums the n terms of a dot product in another order: the error of a plain loop grows like √n u, that of a sum
    by blocks hardly with n. The factor √n (n: the longest dot product) covers that difference, and 2 that both err.
    """
    exact = deepcopy(net).double()(x.double())
    error = float((net(x).double() - exact).abs().max())
    unit = torch.finfo(torch.float32).eps / 2
    longest = max((p[0].numel() for p in net.parameters() if p.dim() > 1), default=1)
    return 2 * sqrt(longest) * max(error, unit * float(exact.abs().max()))

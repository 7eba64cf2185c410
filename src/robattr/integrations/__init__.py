"""robattr inside other libraries: PyTorch Lightning, Hugging Face's Trainer, Accelerate and Hub, ONNX.

Each name is imported at its first use, and so is its library, an extra of robattr: `pip install "robattr[lightning]"`.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from robattr.integrations.wrapped import rho_of as rho_of

if _TYPE_CHECKING:
    from robattr.integrations.hub import HubModel as HubModel
    from robattr.integrations.huggingface import RobustTrainer as RobustTrainer
    from robattr.integrations.lightning import AttributionMonitor as AttributionMonitor
    from robattr.integrations.lightning import RobustTraining as RobustTraining
    from robattr.integrations.onnx import export_onnx as export_onnx
    from robattr.integrations.onnx import run_onnx as run_onnx

_LAZY = {
    "AttributionMonitor": "lightning",
    "HubModel": "hub",
    "RobustTrainer": "huggingface",
    "RobustTraining": "lightning",
    "export_onnx": "onnx",
    "run_onnx": "onnx",
}


def __getattr__(name: str) -> object:
    """Import a library at the first use of a name that needs it."""
    if name in _LAZY:
        return getattr(_import_module(f"robattr.integrations.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})

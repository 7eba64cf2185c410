"""robattr inside other libraries: PyTorch Lightning, Hugging Face's Trainer, Accelerate and Hub, ONNX.

Each name is imported at its first use, and so is its library, an extra of robattr: `pip install "robattr[lightning]"`.
"""

from typing import TYPE_CHECKING

from robattr._lazy import lazy

if TYPE_CHECKING:
    from robattr.integrations.hub import HubModel as HubModel
    from robattr.integrations.huggingface import RobustTrainer as RobustTrainer
    from robattr.integrations.lightning import AttributionMonitor as AttributionMonitor
    from robattr.integrations.lightning import RobustTraining as RobustTraining
    from robattr.integrations.onnx import export_onnx as export_onnx
    from robattr.integrations.onnx import run_onnx as run_onnx
    from robattr.integrations.wrapped import rho_of as rho_of

lazy(
    __name__,
    hub="HubModel",
    huggingface="RobustTrainer",
    lightning="AttributionMonitor RobustTraining",
    onnx="export_onnx run_onnx",
    wrapped="rho_of",
)

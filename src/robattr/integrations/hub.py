"""Trained networks on the Hugging Face Hub: weights, how to build the network, and a model card from the records.

HubModel.from_run("runs/mnist").push_to_hub("me/mnist-ig-norm")
net = HubModel.from_pretrained("me/mnist-ig-norm")            # x ↦ logits
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import robattr.recipes  # noqa: F401 (registers the networks of the tuned recipes)
from robattr._extras import need
from robattr.errors import InvalidInput
from robattr.models import Spec
from robattr.models.architecture import build
from robattr.reporting.model_card import model_card
from robattr.runs import load_model

Mixin: Any = need("huggingface_hub", extra="hub").PyTorchModelHubMixin


class HubModel(nn.Module, Mixin, library_name="robattr"):  # type: ignore[call-arg, misc]
    """A network of `robattr.models` with the Hub's methods: `save_pretrained`, `from_pretrained`, `push_to_hub`.

    architecture, arguments    how the network is built (its `spec`); config.json has them, so that no code is loaded

    A network that is not marked `@robattr.models.architecture` has no spec: give your own class the Hub's
    `PyTorchModelHubMixin`, and `model_card(run)` as its card.
    """

    def __init__(self, architecture: str, arguments: dict[str, Any]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            self.network = build(Spec(architecture, arguments))  # `module` would lose its name in the file
        self._card: str | None = None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out

    @classmethod
    def from_run(cls, run: str | Path, *, license: str = "unknown") -> HubModel:
        """The network of a finished run directory, with its card."""
        net = load_model(run)
        spec = getattr(net, "spec", None)
        if not isinstance(spec, Spec):
            raise InvalidInput(
                f"expected a network built by an @architecture in {run}, got {type(net).__name__}: give its class "
                "huggingface_hub.PyTorchModelHubMixin, and model_card(run) as its card"
            )
        made = cls(spec.name, spec.arguments)
        made.network.load_state_dict(net.state_dict())
        made._card = model_card(run, license=license)
        return made

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> HubModel:
        """The network in a folder or a repository of the Hub; a file without one of its weights is an error."""
        found: HubModel = super().from_pretrained(*args, **{"strict": True, **kwargs})
        return found

    def generate_model_card(self, *args: Any, **kwargs: Any) -> Any:
        """The card of the run; without one, the Hub's own."""
        if self._card is None:
            return super().generate_model_card(*args, **kwargs)
        return need("huggingface_hub", extra="hub").ModelCard(self._card)

"""Models of tokens: token ids cannot be moved a little, their embeddings can.

logits = g(e),  e = embed(ids)      attribution, attack and measure at e, (B, tokens, width)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from robattr.auditing.wrapped_model import logits
from robattr.errors import InvalidInput, UnsupportedModel, nearest
from robattr.formula.network import second_order


class Embedded(nn.Module):
    """`model`, a classifier of token ids (B, tokens), as a function of what its layer `layer` returns.

    `embed(ids)` are the embeddings; called on embeddings, it answers with the model's logits. Any objective, attack and
    measure then works on them: `rho(net, net.embed(ids), y)`. Deeper layers are attributed at by name as usual:
    `at_layer("module.encoder")`.

    The model runs on ids 0 of the right length while `layer` answers with the given embeddings: masks that a model
    derives from its ids (padding) are not those of the real ids. Use sequences of one length.
    """

    def __init__(self, model: nn.Module, layer: str) -> None:
        super().__init__()
        self.module, self.layer = model, layer
        names = [name for name, _ in model.named_modules() if name]
        if layer not in names:
            raise InvalidInput(f"the model has no layer {layer!r}: {nearest(layer, names)}")

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """What the layer returns for token ids (B, tokens): (B, tokens, width)."""
        seen: list[Any] = []
        handle = self.module.get_submodule(self.layer).register_forward_hook(lambda _m, _a, out: seen.append(out))
        try:
            with second_order(self.module):
                self.module(ids)
        finally:
            handle.remove()
        if len(seen) != 1 or not isinstance(seen[0], Tensor) or seen[0].shape[:2] != ids.shape:
            raise UnsupportedModel(
                f"expected layer {self.layer!r} to return one tensor (B, tokens, width), once: name the embedding layer"
            )
        return seen[0].clone()

    def forward(self, embeddings: Tensor) -> Tensor:
        if embeddings.dim() != 3:
            raise InvalidInput(f"expected embeddings (B, tokens, width), got {tuple(embeddings.shape)}: use embed(ids)")
        ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)

        def replace(_module: nn.Module, _args: Any, _out: Any) -> Tensor:
            return embeddings

        handle = self.module.get_submodule(self.layer).register_forward_hook(replace)
        try:
            return logits(self.module(ids))
        finally:
            handle.remove()

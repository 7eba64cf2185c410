"""Models of tokens, attributed and attacked at their embeddings, because token ids are discrete.

logits = g(e),  e = embed(ids)      attributions, attacks and metrics at e, (B, tokens, width)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from robattr.attacks.maps import AttributionMap
from robattr.auditing.wrapped_model import logits
from robattr.errors import InvalidInput, UnsupportedModel, nearest
from robattr.formula.network import Model, second_order


class Embedded(nn.Module):
    """`model`, a classifier of token ids (B, tokens), as a function of what its layer `layer` returns.

    `embed(ids)` returns the embeddings; a call on embeddings returns the logits. Any objective, attack and metric then
    works on embeddings: `rho(net, net.embed(ids), y)`. Deeper layers have their names: `at_layer("module.encoder")`.

    The model runs on ids 0 of the right length while a hook replaces the output of `layer`. So masks that the model
    derives from its ids (padding) are those of ids 0: use sequences of one length.
    """

    def __init__(self, model: nn.Module, layer: str) -> None:
        super().__init__()
        self.module, self.layer = model, layer
        names = [name for name, _ in model.named_modules() if name]
        if layer not in names:
            raise InvalidInput(f"the model has no layer {layer!r}: {nearest(layer, names)}")

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """The output of the layer for token ids (B, tokens): (B, tokens, width)."""
        seen: list[Any] = []
        with second_order(self.module), self._hook(seen.append):
            self.module(ids)
        if len(seen) != 1 or not isinstance(seen[0], Tensor) or seen[0].shape[:2] != ids.shape:
            raise UnsupportedModel(
                f"expected layer {self.layer!r} to return one tensor (B, tokens, width), once: name the embedding layer"
            )
        return seen[0].clone()

    def forward(self, embeddings: Tensor) -> Tensor:
        if embeddings.dim() != 3:
            raise InvalidInput(f"expected embeddings (B, tokens, width), got {tuple(embeddings.shape)}: use embed(ids)")
        ids = torch.zeros(embeddings.shape[:2], dtype=torch.long, device=embeddings.device)
        with self._hook(lambda _: embeddings):
            return logits(self.module(ids))

    @contextmanager
    def _hook(self, replaced: Callable[[Any], Any]) -> Iterator[None]:
        """Give what the layer returns to a function, whose result, unless None, replaces it."""
        handle = self.module.get_submodule(self.layer).register_forward_hook(lambda _m, _a, out: replaced(out))
        try:
            yield
        finally:
            handle.remove()


def per_token(map: AttributionMap) -> AttributionMap:
    """One value per token of embeddings (B, tokens, width): S_t = Σ_d |a_td|, like the sum over channels of a pixel."""

    def summed(model: Model, x: Tensor, y: Tensor) -> Tensor:
        return map.of(model, x, y).abs().sum(dim=-1)

    def effect(model: Model, x: Tensor, y: Tensor) -> Tensor:
        a = map.of(model, x, y)
        return (a * x if map.slope else a).sum(dim=-1)

    guide, coarse = (None if each is None else per_token(each) for each in (map.guide, map.coarse))
    return replace(
        map,
        name=f"{map.name}-tokens",
        of=summed,
        complete=False,
        along_ray=None,
        guide=guide,
        coarse=coarse,
        slope=False,
        effect=effect,
    )

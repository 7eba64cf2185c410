"""A function of tensors as one CUDA graph: one launch instead of thousands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from robattr.engine.precision import tuned


class Graphed:
    """`fn`, of tensors in any nesting: captured at its first call, then replayed. On a CPU, `fn` itself.

    The results are the graph's own memory, valid until the next call. Tensors that `fn` holds besides its arguments
    must keep their addresses.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] = []
        self._outputs: Any = None

    def __call__(self, *args: Any) -> Any:
        leaves, spec = pytree.tree_flatten(args)
        if not leaves[0].is_cuda:
            return self._fn(*args)
        if self._graph is None:
            self._inputs = [t.clone() for t in leaves]
            with tuned(), torch.cuda.device(leaves[0].device):
                self._capture(*pytree.tree_unflatten(self._inputs, spec))
        assert self._graph is not None
        for place, value in zip(self._inputs, leaves, strict=True):
            place.copy_(value)
        self._graph.replay()
        return self._outputs

    def _capture(self, *args: Any) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compilation and autotuning happen here, outside the capture
            for _ in range(2):
                self._fn(*args)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._fn(*args)
        self._graph, self._outputs = graph, outputs  # a capture that fails leaves none

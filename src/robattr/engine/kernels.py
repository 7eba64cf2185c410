"""A pass over the compiler's graph, for GPUs: one derivative computed by the kernel that is made for it.

The gradient of ‖IG‖₁ in a convolution's kernel W differentiates v ↦ ⟨v, dgrad(g, W)⟩. torch writes it as a convolution
of the images v, channels and batch exchanged, by g as a kernel as large as an image; GPUs have no fast kernel for that.
It is the gradient of a convolution with input v and output gradient g in its kernel, for which they do:

    conv(vᵀ, gᵀ; stride d, padding p, dilation s) = wgrad(v, g; stride s, padding p, dilation d)ᵀ
"""

from __future__ import annotations

import operator
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten


def rewrite(graph: Graph) -> int:
    """Replace every such convolution of the graph by the gradient it is; returns how many there were."""
    found = [n for n in graph.nodes if n.target is aten.convolution.default and _is_kernel_gradient(n)]
    for node in found:
        args: Any = node.args
        v, g, _, stride, padding, dilation, _, output_padding, _ = args
        result: Any = node.meta["val"]
        exchange = [1, 0, *range(2, result.dim())]
        call = partial(_call, graph, result.fake_mode)
        with graph.inserting_before(node):
            outputs, inputs = (call(aten.permute.default, each, exchange) for each in (g, v))
            shape = [result.shape[1], result.shape[0], *result.shape[2:]]
            kernel = call(aten.empty.memory_format, shape, dtype=result.dtype, device=result.device)
            three = call(
                aten.convolution_backward.default, outputs, inputs, kernel, None, dilation, padding, stride, False,
                output_padding, 1, [False, True, False],
            )  # fmt: skip
            back = call(aten.permute.default, call(operator.getitem, three, 1), exchange)
        node.replace_all_uses_with(back)
        graph.erase_node(node)
    return len(found)


def _is_kernel_gradient(node: Node) -> bool:
    """Both operands are views with batch and channels exchanged, and the "kernel" is larger than the result."""
    args: Any = node.args
    v, g, bias, stride, _, _, transposed, _, groups = args
    if bias is not None or transposed or groups != 1 or any(d != 1 for d in stride):
        return False
    images, kernel, result = (each.meta["val"] for each in (v, g, node))
    exchanged = images.stride(0) <= images.stride(1) and kernel.stride(0) < kernel.stride(1)
    return bool(exchanged and prod(kernel.shape[2:]) > prod(result.shape[2:]))


def _call(graph: Graph, mode: Any, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node, which knows the shape of its result."""
    node = graph.call_function(target, args, kwargs)
    with mode:
        node.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args), **kwargs)
    return node


@cache
def options() -> dict[str, Any]:
    """For `torch.compile(options=…)`; the compiler's cache knows the pass by the text of this file."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class KernelGradients(CustomGraphPass):
        def __call__(self, graph: Graph) -> None:
            rewrite(graph)

        def uuid(self) -> Any:
            return get_hash_for_files((__file__,))

    return {"post_grad_custom_pre_pass": KernelGradients()}

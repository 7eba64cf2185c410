"""Passes over the compiler's graph, for GPUs: derivatives of convolutions by the kernels that are fast there.

**In the kernel.** The gradient of ‖IG‖₁ in a convolution's kernel W differentiates v ↦ ⟨v, dgrad(g, W)⟩. torch takes
it for a convolution of the images v, channels and batch exchanged, by g as a kernel as large as an image; GPUs have no
fast kernel for that. It is the gradient of a convolution with input v and output gradient g in its kernel, for which
they do:

    conv(vᵀ, gᵀ; stride d, padding p, dilation s) = wgrad(v, g; stride s, padding p, dilation d)ᵀ

**In the input.** A profile of MNIST's net on an H200 had dgrad(g, W) in tf32 take four times as long as the convolution
itself (by a Fourier transform), and in sixteen bits as long. tf32 has the ten-bit mantissa of half precision, so where
tf32 is asked for, nothing is lost but range; and that is kept by powers of two, which bring the largest |g| to 2⁸ and
the largest Σ|W| to 2⁷, so that no sum exceeds 2¹⁵:

    dgrad(g, W) = dgrad(half(2ᵃ g), half(2ᵇ W)) / 2ᵃ⁺ᵇ

Forward passes stay in float32: rounded activations tie, and a max-pool then picks another winner.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
CONVERT = torch.ops.prims.convert_element_type.default
ONLY_INPUT, ONLY_KERNEL = [True, False, False], [False, True, False]  # of a convolution's input, kernel and bias


def kernel_gradients(graph: Graph) -> int:
    """Replace every convolution that is a derivative in a kernel by the gradient it is; returns how many there were."""
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
                output_padding, 1, ONLY_KERNEL,
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


def half_input_gradients(graph: Graph) -> int:
    """Compute every derivative in the input of a float32 convolution in half precision; returns how many there were."""
    found = [n for n in graph.nodes if n.target is aten.convolution_backward.default and _is_input_gradient(n)]
    for node in found:
        args: Any = node.args
        g, x, w, *rest = args
        like: Any = x.meta["val"]
        call = partial(_call, graph, like.fake_mode)
        with graph.inserting_before(node):
            sums = call(aten.sum.dim_IntList, call(aten.abs.default, w), [0, 2, 3])
            up = [
                _power_of_two(call, call(aten.abs.default, g), reach=2.0**8), _power_of_two(call, sums, reach=2.0**7),
            ]  # fmt: skip
            halves = [
                call(CONVERT, call(aten.mul.Tensor, each, by), torch.float16)
                for each, by in zip((g, w), up, strict=True)
            ]
            shape = call(
                aten.empty.memory_format, list(like.shape), dtype=torch.float16, device=like.device,
                memory_format=torch.channels_last,
            )  # fmt: skip
            three = call(aten.convolution_backward.default, halves[0], shape, halves[1], *rest[:-1], ONLY_INPUT)
            back = call(CONVERT, call(operator.getitem, three, 0), torch.float32)
            for by in up:
                back = call(aten.div.Tensor, back, by)
        for user in [u for u in node.users if u.args[1] == 0]:
            user.replace_all_uses_with(back)
            graph.erase_node(user)
        node.update_arg(len(args) - 1, ONLY_KERNEL)  # what is left to it
        node.meta["val"] = (None, *node.meta["val"][1:])
        if not node.users:
            graph.erase_node(node)
    return len(found)


def _is_input_gradient(node: Node) -> bool:
    """A two-dimensional one, in float32, whose channels fill the units that multiply in half precision."""
    args: Any = node.args
    _, _, w, _, _, _, _, transposed, _, groups, wanted = args
    kernel = w.meta["val"]
    fits = kernel.dim() == 4 and kernel.dtype == torch.float32 and min(kernel.shape[:2]) >= 8
    return bool(fits and not transposed and groups == 1 and wanted[0] and not wanted[2])


def _power_of_two(call: Callable[..., Node], sizes: Node, *, reach: float) -> Node:
    """The largest power of two that keeps the largest of `sizes` (not negative) within `reach`, itself one."""
    largest = call(aten.clamp_min.default, call(aten.amax.default, sizes), 2.0**-100)
    exponent = call(aten.floor.default, call(aten.log2.default, call(aten.reciprocal.default, largest)))
    return call(aten.mul.Tensor, call(aten.exp2.default, exponent), reach)


def _call(graph: Graph, mode: Any, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node, which knows the shape of its result."""
    node = graph.call_function(target, args, kwargs)
    with mode:
        node.meta["val"] = target(*(a.meta["val"] if isinstance(a, Node) else a for a in args), **kwargs)
    return node


@cache
def options(arithmetic: str) -> dict[str, Any]:
    """For `torch.compile(options=…)`; the compiler's cache knows the passes by precision and the text of this file."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Passes(CustomGraphPass):
        def __call__(self, graph: Graph) -> None:
            kernel_gradients(graph)
            if arithmetic == "tf32":
                half_input_gradients(graph)

        def uuid(self) -> Any:
            return arithmetic, get_hash_for_files((__file__,))

    return {"post_grad_custom_pre_pass": Passes()}

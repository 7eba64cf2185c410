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

**Of a max-pool.** Pools that tile an image (kernel = stride, as in the paper's MNIST net) become comparisons of the
tile's corners, and their derivatives choices among the corners by the number k of the winner. All of these are
pointwise, so that the compiler computes what stands around a pool inside the same loop, and what is four times as large
as the pool's result is never stored:

    value = max_k x_k      backward: (g at corner k, else 0)      its backward: v_k
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from math import prod
from typing import Any

import torch
from torch.fx import Graph, Node

aten, prims = torch.ops.aten, torch.ops.prims
CONVERT = prims.convert_element_type.default
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
            sizes = call(aten.abs.default, _chosen_from(g))
            up = [_power_of_two(call, sizes, reach=2.0**8), _power_of_two(call, sums, reach=2.0**7)]
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


def _chosen_from(g: Node) -> Node:
    """What no value of g exceeds, as far as the graph shows, and takes less to read.

    The derivatives of ReLU and of pools choose a value or zero, that of softplus takes a share of it.
    """
    while True:
        args: Any = g.args
        if g.target in (aten.reshape.default, aten.view.default):
            g = args[0]
        elif g.target is aten.where.self and _is_zero(args[1]):
            g = args[2]
        elif g.target is aten.where.self and (_is_zero(args[2]) or _is_share(args[2], args[1])):
            g = args[1]
        else:
            return g


def _is_zero(node: Node) -> bool:
    at = 1 if node.target is aten.full.default else 0
    return node.target in (aten.full.default, aten.scalar_tensor.default) and bool(node.args[at] == 0)


def _is_share(node: Node, whole: Node) -> bool:
    """Whether the node is whole · e/(e + 1) with e = exp(…): the derivative of softplus, as the compiler writes it."""
    if node.target is not aten.div.Tensor:
        return False
    product, total = node.args
    if not (isinstance(product, Node) and isinstance(total, Node) and product.target is aten.mul.Tensor):
        return False
    if total.target is not aten.add.Tensor or total.args[1] != 1:
        return False
    e = total.args[0]
    return isinstance(e, Node) and e.target is aten.exp.default and product.args == (whole, e)


def _power_of_two(call: Callable[..., Node], sizes: Node, *, reach: float) -> Node:
    """The largest power of two that keeps the largest of `sizes` (not negative) within `reach`, itself one."""
    largest = call(aten.clamp_min.default, call(aten.amax.default, sizes), 2.0**-100)
    exponent = call(aten.floor.default, call(aten.log2.default, call(aten.reciprocal.default, largest)))
    return call(aten.mul.Tensor, call(aten.exp2.default, exponent), reach)


POOL, INDICES = (f"prims._low_memory_max_pool_{name}.default" for name in ("with_offsets", "offsets_to_indices"))


def tiled_pools(graph: Graph) -> int:
    """Replace every max-pool by tiles, and its derivatives, by pointwise choices; returns how many pools there were."""
    found = [n for n in graph.nodes if str(n.target) == POOL and _tiles(n)]
    for node in found:
        args: Any = node.args
        x, tile = args[0], args[1]
        call = partial(_call, graph, x.meta["val"].fake_mode)
        with graph.inserting_before(node):
            first, *others = _corners(call, x, tile)
            like: Any = first.meta["val"]
            value, winner = first, call(aten.full.default, like.shape, 0, dtype=torch.int8, device=like.device)
            for k, corner in enumerate(others, 1):
                larger = call(aten.gt.Tensor, corner, value)
                number = call(aten.full.default, [], k, dtype=torch.int8, device=like.device)
                winner = call(aten.where.self, larger, number, winner)
                value = call(aten.maximum.default, value, corner)
        outputs = {user.args[1]: user for user in node.users}
        if 1 in outputs:
            for indices in [u for u in outputs[1].users if str(u.target) == INDICES]:
                _choose(graph, indices, winner, tile)
        for place, new in ((0, value), (1, winner)):
            if place in outputs:
                _replace(graph, outputs[place], new)
        graph.erase_node(node)
    return len(found)


def _tiles(node: Node) -> bool:
    """Kernel and stride are one, nothing is padded or dilated, and whole tiles of up to nine pixels fill the image."""
    args: Any = node.args
    x, kernel, stride, padding, dilation, _ = args
    size = x.meta["val"].shape[2:]
    whole = len(size) == 2 and all(n % k == 0 for n, k in zip(size, kernel, strict=True))
    return bool(whole and kernel == stride and prod(kernel) <= 9 and not any(padding) and set(dilation) == {1})


def _choose(graph: Graph, indices: Node, winner: Node, tile: list[int]) -> None:
    """Replace what a pool's backward pass, and that one's own, do by `indices`: the winner's number says as much."""
    *lead, rows, columns = winner.meta["val"].shape
    image = [*lead, rows * tile[0], columns * tile[1]]
    call = partial(_call, graph, winner.meta["val"].fake_mode)
    for user in list(indices.users):
        args: Any = user.args
        if user.target is aten.max_pool2d_with_indices_backward.default:
            g = args[0]
            with graph.inserting_before(user):
                parted = [*lead, rows, 1, columns, 1]
                like = g.meta["val"]
                down, across = (
                    call(aten.reshape.default, _counted(call, n, like.device), shape)
                    for n, shape in zip(tile, ([-1, 1, 1], [1, 1, -1]), strict=True)
                )
                number = call(aten.add.Tensor, call(aten.mul.Tensor, down, tile[1]), across)
                number = call(CONVERT, number, torch.int8)
                here = call(aten.eq.Tensor, call(aten.reshape.default, winner, parted), number)
                slope = call(aten.reshape.default, g, parted)
                zero = call(aten.full.default, [], 0.0, dtype=like.dtype, device=like.device)
                spread = call(aten.where.self, here, slope, zero)
                back = call(aten.reshape.default, spread, image)
            _replace(graph, user, back)
        elif user.target in (aten.reshape.default, aten.view.default):
            for gather in [u for u in user.users if u.target is aten.gather.default and u.args[2] is user]:
                v: Any = gather.args[0]
                with graph.inserting_before(gather):
                    picked, *others = _corners(call, call(aten.reshape.default, v, image), tile)
                    for k, corner in enumerate(others, 1):
                        picked = call(aten.where.self, call(aten.eq.Scalar, winner, k), corner, picked)
                    back = call(aten.reshape.default, picked, list(gather.meta["val"].shape))
                _replace(graph, gather, back)
            if not user.users:
                graph.erase_node(user)
    if not indices.users:
        graph.erase_node(indices)


def _counted(call: Callable[..., Node], n: int, device: torch.device) -> Node:
    """0, …, n − 1."""
    return call(prims.iota.default, n, start=0, step=1, dtype=torch.int64, device=device, requires_grad=False)


def _corners(call: Callable[..., Node], x: Node, tile: list[int]) -> list[Node]:
    """x_k: the pixels at place k of every tile, row by row."""
    rows = [call(aten.slice.Tensor, x, 2, i, None, tile[0]) for i in range(tile[0])]
    return [call(aten.slice.Tensor, row, 3, j, None, tile[1]) for row in rows for j in range(tile[1])]


def _replace(graph: Graph, old: Node, new: Node) -> None:
    """`new` for `old`, in the memory layout that those behind it were promised."""
    old.replace_all_uses_with(new)
    new.meta["val"] = old.meta["val"]
    graph.erase_node(old)


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
            tiled_pools(graph)
            kernel_gradients(graph)
            if arithmetic == "tf32":
                half_input_gradients(graph)

        def uuid(self) -> Any:
            return arithmetic, get_hash_for_files((__file__,))

    # Tiles are to be computed where they are used, not stored; thresholds of 32, 64 and 400 were slower on an H200.
    inline = {"realize_acc_reads_threshold": 16, "realize_opcount_threshold": 200}
    return {"post_grad_custom_pre_pass": Passes(), **inline}


@cache
def op_by_op() -> Callable[..., Any]:
    """A backend for `torch.compile` that generates no code: the traced graph with `kernel_gradients`, op by op."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def rewritten(graph: torch.fx.GraphModule, _: Any) -> Any:
        kernel_gradients(graph.graph)
        graph.recompile()
        return make_boxed_func(graph.forward)

    backend: Callable[..., Any] = aot_autograd(fw_compiler=rewritten)
    return backend

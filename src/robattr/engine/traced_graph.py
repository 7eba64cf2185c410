"""A function of tensors as a graph of torch's operators, and the part of it that iterations would repeat.

Of a function that is iterated, what does not change with the argument that moves (the first layer at x, weights in
reduced precision) is a graph of its own, which runs once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from robattr.engine import forms, layer_pairs

aten = torch.ops.aten
COSTLY = {
    aten.convolution.default, aten.convolution_backward.default, aten.max_pool2d_with_indices.default,
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten._to_copy.default,
    aten.clone.default, aten.constant_pad_nd.default,
}  # fmt: skip
"""Operations that are worth keeping between iterations; others are cheaper inside the operations that use them."""
SHAPES = {aten.ones_like.default, aten.zeros_like.default, aten.full_like.default, aten.new_zeros.default}
"""Operations that read no values of their operands."""


def trace(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[GraphModule, list[Tensor], pytree.TreeSpec]:
    """`fn` as a graph of torch's operators, the tensors it holds besides its arguments, and the shape of its result.

    Those tensors are inputs of the graph, behind the arguments: they may change in place. A generator that `fn` seeds
    itself would draw other numbers at each call of the graph: refused (`constant`).
    """
    leaves, spec = pytree.tree_flatten(args)
    specs: list[pytree.TreeSpec] = []

    def traced(table: dict[Any, Any], layers: AbstractContextManager[object]) -> GraphModule:
        def of_leaves(*tensors: Tensor) -> list[Tensor]:
            with layers:
                out, out_spec = pytree.tree_flatten(fn(*pytree.tree_unflatten(tensors, spec)))
            specs[:] = [out_spec]
            return out

        return make_fx(of_leaves, table, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)

    try:
        module = traced(forms.TABLE, layer_pairs.LayerPairs())
    except (RuntimeError, ValueError):  # a view that the forms' layout of memory does not admit
        module = traced({}, nullcontext())
    graph = module.graph
    graph.set_codegen(CodeGen())
    for node in [n for n in graph.nodes if n.target is torch.ops.aten.detach.default]:
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    graph.eliminate_dead_code()
    if any(n.kwargs.get("generator") is not None for n in graph.nodes):
        raise RuntimeError("a function with a random generator of its own would draw other numbers at each call")
    constants = _lift_constants(module)
    module.recompile()
    return module, constants, specs[0]


def constant(make: Callable[[], Tensor]) -> Tensor:
    """make(), which a trace does not record: its result is a constant of the graph."""
    with _disable_current_modes():
        return make()


def _lift_constants(module: GraphModule) -> list[Tensor]:
    """Make the tensors that a graph contains its inputs; returns them in order."""
    graph, lifted = module.graph, dict[str, Any]()
    held = [n for n in graph.nodes if n.op == "get_attr" and isinstance(getattr(module, n.target, None), Tensor)]
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    for node in held:
        if node.target not in lifted:
            with graph.inserting_after(last):
                lifted[node.target] = last = graph.placeholder(str(node.target))
            last.meta = dict(node.meta)
        node.replace_all_uses_with(lifted[node.target])
        graph.erase_node(node)
    return [getattr(module, name).detach() for name in lifted]


def split(module: GraphModule, moving: set[int]) -> tuple[GraphModule | None, GraphModule]:
    """The graph as two: costly operations that do not depend on the inputs `moving`, and all others.

    Both take all inputs; the second one also takes the results of the first, behind them. None where the second one
    needs nothing costly, and in graphs that overwrite tensors.
    """
    graph = module.graph
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    calls = [n for n in graph.nodes if n.op == "call_function"]
    moved = {inputs[i] for i in moving}
    for node in calls:
        if moved.intersection(node.all_input_nodes):
            moved.add(node)
    read = set(graph.output_node().all_input_nodes)
    for node in reversed(calls):
        if node in read and node.target not in SHAPES:
            read.update(node.all_input_nodes)
    costly = [n for n in calls if n in read and n not in moved and _costly(n)]
    overwrites = any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in calls)
    early = set(costly)
    for node in reversed(calls):
        if early.intersection(node.users):
            early.add(node)
    kept = [n for n in costly if isinstance(n.meta["val"], Tensor) and not early.issuperset(read.intersection(n.users))]
    if not moving or not kept or overwrites:
        return None, module
    return _graph_of(module, inputs, outputs=kept), _graph_of(module, [*inputs, *kept])


def _costly(node: Node) -> bool:
    """Whether a node, or the tuple whose part it is, is the result of a costly operation."""
    return node.target in COSTLY or (node.target is operator.getitem and _costly(node.all_input_nodes[0]))


def _graph_of(module: GraphModule, inputs: list[Node], *, outputs: list[Node] | None = None) -> GraphModule:
    """The part of a graph that computes `outputs`, or its own ones, from `inputs`."""
    graph = Graph()
    graph.set_codegen(CodeGen())
    known: dict[Node, Node] = {}
    for node in inputs:
        known[node] = graph.placeholder(node.name)
        known[node].meta = dict(node.meta)
    for node in module.graph.nodes:
        if node.op == "output":
            graph.output(
                tuple(known[n] for n in outputs) if outputs else pytree.tree_map_only(Node, known.get, node.args[0])
            )
        elif node not in known:
            known[node] = graph.node_copy(node, known.__getitem__)
    graph.eliminate_dead_code()
    return GraphModule(module, graph)

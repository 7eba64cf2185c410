"""One step of training as a function that returns gradients: eager, compiled, or replayed as one CUDA graph.

The mathematics is `Robust`'s; what is here is how it runs. λ, β, γ, ε and the step size are tensors inside the compiled
functions, so that ramps never compile anything again:

    attack    z ← project(z + a · direction(∇_z Σ_i c_i d_i(x, z))), steps times
    update    ∇_θ Σ_examples ℓ(x) + λ Σ_i c_i d_i(x, z)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad

from robattr.engine.compiled import Compiled, own_function, restless
from robattr.engine.precision import precision, tuned
from robattr.formula.ascent import PGD
from robattr.formula.attribution import IG
from robattr.formula.change import Change, Measured, Term
from robattr.formula.checks import check_batch, check_model
from robattr.formula.neighbourhoods import LinfBall, LpBall, Neighbourhood, Rand, check_bounds
from robattr.formula.network import Bound, bind, second_order
from robattr.formula.objective import Rho, Robust
from robattr.formula.scalars import Scalar


class Step:
    """Gradients of Σ ρ over a batch, into `parameter.grad`.

        step = Step(model, compiled=True)
        rho = step(objective, x, y, start=start)    # a detached Rho; model's .grad is set

    compiled    compile the attack gradient and the update (pays on long runs: it takes a minute)
    graph       on a GPU, replay the whole step as one CUDA graph (pays at once, compiled or not)
    arithmetic  fp32, tf32 or bf16 for convolutions and matrix products

    Where neither applies (batch norm, dropout or anything else that answers otherwise in training mode, chunked nodes,
    an adversary other than PGD, an autograd.Function in the model) or fails, the plain formula runs; results agree.
    `notes` says what happened, `seconds` how long compiling took.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compiled: bool = False,
        graph: bool = True,
        arithmetic: str = "fp32",
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        check_model(model)
        self.model, self.arithmetic, self.backend = model, arithmetic, backend
        self.compiled, self.graph = compiled, graph
        self.notes: list[str] = []
        self.seconds = 0.0
        self._plans: dict[Any, _Plan] = {}
        self._checked = False
        self._own_function: str | None = None  # not looked for yet
        self._restless: dict[tuple[bool, ...], bool] = {}  # by which parts are in training mode

    def __call__(
        self, rho: Robust, x: Tensor, y: Tensor, *, start: Tensor | None = None, rand: Rand = torch.rand_like
    ) -> Rho:
        if not self._checked:  # once: a check waits for the device
            check_batch(self.model, x, y)
            check_bounds(x, rho.within.bounds)
            self._checked = True
        if start is None and rho.change.terms:
            start = rho.within.start(x, rand)
        wanted = self.compiled or (self.graph and x.is_cuda)
        why = self._unfit(rho, x) if wanted else ""
        if why or not wanted:
            if why and why not in self.notes:
                self.notes.append(why)
            with precision(self.arithmetic, x.device.type):
                return eager(self.model, rho, x, y, start=start)
        key = (_shape_of(rho), x.shape, x.dtype, x.device)
        if key not in self._plans:
            self._plans[key] = _Plan(self, rho)
        plan = self._plans[key]
        out = plan(rho, x, y, start)
        self.seconds = sum(p.seconds for p in self._plans.values())
        return out

    def _unfit(self, rho: Robust, x: Tensor) -> str:
        """Why the compiled form does not apply, or an empty string."""
        if self._own_function is None:
            self._own_function = own_function(self.model, x)
        if self._own_function:
            return f"the model has an autograd.Function of its own ({self._own_function}): the step runs eagerly"
        if any(
            m.training and isinstance(m, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd)
            for m in self.model.modules()
        ):
            return "batch norm or dropout in training mode: the step runs eagerly"
        mode = tuple(part.training for part in self.model.modules())
        if mode not in self._restless:
            self._restless[mode] = restless(self.model, x)
        if self._restless[mode]:
            return "the model answers otherwise in training mode: the step runs eagerly"
        if rho.change.terms and not (isinstance(rho.by, PGD) and isinstance(rho.within, LinfBall | LpBall)):
            return f"{type(rho.by).__name__} within {type(rho.within).__name__}: the step runs eagerly"
        terms = [t for _, t in rho.change.terms]
        if any(isinstance(t, Measured) and isinstance(t.attribution, IG) and t.attribution.chunk for t in terms):
            return "nodes in chunks: the step runs eagerly, with flat memory"
        return ""


def eager(model: nn.Module, rho: Robust, x: Tensor, y: Tensor, *, start: Tensor | None) -> Rho:
    """The formula as it stands, and its backward pass. Gradients are added to `parameter.grad`, as torch does."""
    loss = rho.of(model, x, y)
    net = bind(model)
    with second_order(model):
        worst = rho.attack(net.detach(), x, y, start=start)
        penalty = rho.change(net, x, worst, y)
        (loss + rho.weight * penalty).sum().backward()
    return Rho(loss.detach(), penalty.detach(), worst, rho.weight)


@dataclass(frozen=True)
class _Numbers:
    """Everything a ramp may change, as tensors at fixed addresses."""

    update: Tensor  # c_i of the change
    attack: Tensor  # c_i of the attacked change
    weight: Tensor  # λ
    radius: Tensor  # ε
    step: Tensor  # a

    @staticmethod
    def of(rho: Robust, x: Tensor) -> _Numbers:
        def put(*values: float) -> Tensor:
            return torch.tensor(values, dtype=x.dtype, device=x.device)

        by = rho.by if isinstance(rho.by, PGD) else PGD(0, 0.0)
        radius = rho.within.radius if isinstance(rho.within, LinfBall | LpBall) else 0.0
        return _Numbers(
            put(*(c for c, _ in rho.change.terms)),
            put(*(c for c, _ in (rho.attacked or rho.change).terms)),
            put(rho.weight)[0],
            put(radius)[0],
            put(by.step_size)[0],
        )

    def fill(self, other: _Numbers) -> None:
        for name in ("update", "attack", "weight", "radius", "step"):
            getattr(self, name).copy_(getattr(other, name))


class _Plan:
    """The functions of one shape of objective and batch, compiled if asked, and the CUDA graph that replays them."""

    def __init__(self, step: Step, rho: Robust) -> None:
        self.model, self.arithmetic, self.graph = step.model, step.arithmetic, step.graph
        self.steps = rho.by.steps if isinstance(rho.by, PGD) and rho.change.terms else 0
        self._attack: Callable[..., Any] = _attack_gradient(step.model, _terms(rho.attacked or rho.change))
        self._update: Callable[..., Any] = _update_gradient(step.model, _terms(rho.change), rho.of)
        if step.compiled:
            self._attack = Compiled(self._attack, name="attack gradient", backend=step.backend)
            self._update = Compiled(self._update, name="gradient step", backend=step.backend)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: tuple[dict[str, Tensor], Tensor, Tensor, Tensor] | None = None
        self._numbers: _Numbers | None = None

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in (self._attack, self._update) if isinstance(part, Compiled))

    def __call__(self, rho: Robust, x: Tensor, y: Tensor, start: Tensor | None) -> Rho:
        z = rho.within.project(start, x) if start is not None and rho.change.terms else x
        numbers = _Numbers.of(rho, x)
        with second_order(self.model), precision(self.arithmetic, x.device.type):
            if x.is_cuda and self.graph:
                gradients, loss, penalty, worst = self._replay(rho.within, x, y, z, numbers)
            else:
                gradients, loss, penalty, worst = self._run(rho.within, x, y, z, numbers)
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                # Laid out like the parameter, which fused optimisers ask for, and never the graph's own memory.
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.add_(gradients[name])
        return Rho(loss, penalty, worst, rho.weight)

    def _run(
        self, within: Neighbourhood, x: Tensor, y: Tensor, z: Tensor, n: _Numbers
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        buffers = dict(self.model.named_buffers())
        place: Any = within
        if isinstance(within, LinfBall | LpBall):
            place = replace(within, radius=n.radius)  # type: ignore[arg-type]
        for _ in range(self.steps):
            g = self._attack(parameters, buffers, x, z, y, n.attack)
            z = place.project(z + n.step * place.direction(g), x)
        wanted = {name: parameters[name] for name, p in self.model.named_parameters() if p.requires_grad}
        fixed = {name: p for name, p in parameters.items() if name not in wanted}
        gradients, (loss, penalty) = self._update(wanted, fixed, buffers, x, z, y, n.update, n.weight)
        return gradients, loss, penalty, z

    def _replay(
        self, within: Neighbourhood, x: Tensor, y: Tensor, z: Tensor, n: _Numbers
    ) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
        """Copy the inputs to fixed addresses and replay the whole step: one launch instead of thousands."""
        if self._graph is None:
            self._inputs, self._numbers = (x.clone(), y.clone(), z.clone()), n
            with tuned():
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):  # compilation and autotuning happen here, outside the capture
                    for _ in range(2):
                        self._run(within, *self._inputs, n)
                torch.cuda.current_stream().wait_stream(side)
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph):
                    self._outputs = self._run(within, *self._inputs, n)
        assert self._numbers is not None
        assert self._outputs is not None
        for place, value in zip(self._inputs, (x, y, z), strict=True):
            place.copy_(value)
        self._numbers.fill(n)
        self._graph.replay()
        gradients, loss, penalty, worst = self._outputs
        return gradients, loss.clone(), penalty.clone(), worst.clone()


def _attack_gradient(model: nn.Module, terms: tuple[Term, ...]) -> Callable[..., Tensor]:
    bound = bind(model)

    def gradient(
        parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, z: Tensor, y: Tensor, c: Tensor
    ) -> Tensor:
        net = bound.with_parameters(parameters, buffers)
        out: Tensor = grad(lambda v: _weighted(terms, c, net, x, v, y).sum())(z)
        return out

    return gradient


def _update_gradient(model: nn.Module, terms: tuple[Term, ...], of: Scalar) -> Callable[..., Any]:
    bound = bind(model)

    def gradient(
        wanted: dict[str, Tensor],
        fixed: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        z: Tensor,
        y: Tensor,
        c: Tensor,
        weight: Tensor,
    ) -> Any:
        def value(parameters: dict[str, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            net = bound.with_parameters({**parameters, **fixed}, buffers)
            loss = of(net, x, y)
            penalty = _weighted(terms, c, net, x, z, y)
            return (loss + weight * penalty).sum(), (loss, penalty)

        return grad(value, has_aux=True)(wanted)

    return gradient


def _weighted(terms: tuple[Term, ...], c: Tensor, net: Bound, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
    total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for i, term in enumerate(terms):
        total = total + c[i] * term(net, x, z, y)
    return total


def _terms(change: Change) -> tuple[Term, ...]:
    return tuple(term for _, term in change.terms)


def _shape_of(rho: Robust) -> tuple[Any, ...]:
    """What of an objective is compiled in: everything but its numbers."""
    within = replace(rho.within, radius=0.0) if isinstance(rho.within, LinfBall | LpBall) else rho.within
    steps = rho.by.steps if isinstance(rho.by, PGD) else 0
    return _terms(rho.change), _terms(rho.attacked or rho.change), within, steps, rho.of

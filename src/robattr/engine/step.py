"""One step of training as a function that returns gradients: eager, compiled, or replayed as one CUDA graph.

The mathematics is `Robust`'s: its functions `clean`, `climbed` and `penalty` are what runs, in every case. λ, β, γ, ε
and the step size enter the compiled functions as tensors, in the same objects, so that ramps do not compile again:

    attack    z ↦ the next point of the adversary, whose step follows ∇_z Σ climbed(x, z)
    update    θ ↦ ∇_θ Σ clean(x) + λ penalty(x, x*)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from robattr.engine.compiled import Backend, Compiled, train_mode_differs
from robattr.engine.precision import precision, tuned
from robattr.formula.ascent import PGD, grad_and_value
from robattr.formula.attribution import IG
from robattr.formula.change import Change
from robattr.formula.checks import check_batch, check_model
from robattr.formula.neighbourhoods import Everywhere, LinfBall, LpBall, Rand, check_bounds
from robattr.formula.network import Bound, bind, second_order
from robattr.formula.objective import Rho, Robust

Named = dict[str, Tensor]
Result = tuple[Named, Tensor, Tensor, Tensor]
"""Gradients by parameter, loss, penalty and x*."""


class Step:
    """Gradients of Σ ρ over a batch, into `parameter.grad`.

        step = Step(model, compiled=True)
        rho = step(objective, x, y, start=start)    # a detached Rho; model's .grad is set

    compiled    compile the attack step and the update (pays on long runs: it takes half a minute)
    graph       on a GPU, replay the whole step as one CUDA graph (pays at once, compiled or not)
    arithmetic  fp32, tf32 or bf16 for convolutions and matrix products
    backend     what compiles the traced functions (`robattr.engine.compiled.inductor`)

    Where neither applies (a part in train mode that changes outputs or buffers, chunked nodes, an adversary other than
    PGD) or compilation fails, the plain formula runs; results agree. `notes` says why, `seconds` how long compiling
    took.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compiled: bool = False,
        graph: bool = True,
        arithmetic: str = "fp32",
        backend: Backend | None = None,
    ) -> None:
        check_model(model)
        self.model, self.arithmetic, self.backend = model, arithmetic, backend
        self.compiled, self.graph = compiled, graph
        self.notes: list[str] = []
        self.seconds = 0.0
        self._plans: dict[Any, _Plan] = {}
        self._checked = False
        self._differs: dict[tuple[bool, ...], bool] = {}  # by which parts are in train mode

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
                out = rho.unchecked(self.model, x, y, start=start, rand=rand)
                out.value.sum().backward()
            return replace(out, loss=out.loss.detach(), penalty=out.penalty.detach())
        key = (_with_numbers(rho, None), x.shape, x.dtype, x.device, y.shape, y.dtype)
        if key not in self._plans:
            self._plans[key] = _Plan(self, rho)
        result = self._plans[key](rho, x, y, start)
        self.seconds = sum(p.seconds for p in self._plans.values())
        return result

    def _unfit(self, rho: Robust, x: Tensor) -> str:
        """Why the compiled form does not apply, or an empty string."""
        mode = tuple(part.training for part in self.model.modules())
        if mode not in self._differs:
            self._differs[mode] = train_mode_differs(self.model, x)
        if self._differs[mode]:
            return "train mode changes the outputs or buffers of the model: the step runs eagerly"
        if rho.change.terms and not (type(rho.by) is PGD and isinstance(rho.within, LinfBall | LpBall | Everywhere)):
            return f"{type(rho.by).__name__} within {type(rho.within).__name__}: the step runs eagerly"
        if _chunked(rho.change):
            return "nodes in chunks: the step runs eagerly, with flat memory"
        return ""


class _Plan:
    """The functions of one form of objective and batch, compiled if asked, and the CUDA graph that replays them."""

    def __init__(self, step: Step, rho: Robust) -> None:
        self.model, self.arithmetic, self.graph = step.model, step.arithmetic, step.graph
        self.rho, self._bound = rho, bind(step.model)
        self._attack: Callable[..., Any] = self._attack_step
        self._update: Callable[..., Any] = self._update_gradient
        if step.compiled:
            self._attack = Compiled(self._attack, name="attack step", backend=step.backend)
            self._update = Compiled(self._update, name="gradient step", backend=step.backend)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._outputs: Result | None = None
        self._numbers: tuple[list[float], Tensor] | None = None  # on the device until a ramp changes them

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in (self._attack, self._update) if isinstance(part, Compiled))

    def __call__(self, rho: Robust, x: Tensor, y: Tensor, start: Tensor | None) -> Rho:
        z = rho.within.project(start, x) if start is not None and rho.change.terms else x
        numbers = _numbers(rho)
        if self._numbers is None or numbers != self._numbers[0]:
            self._numbers = numbers, torch.tensor(numbers, dtype=x.dtype, device=x.device)
        inputs = x, y, z, self._numbers[1]
        with second_order(self.model), precision(self.arithmetic, x.device.type), torch.no_grad():
            run = self._replay if x.is_cuda and self.graph else self._run
            gradients, loss, penalty, worst = run(*inputs)
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                # Laid out like the parameter, which fused optimisers ask for, and never the graph's own memory.
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.add_(gradients[name])
        return Rho(loss, penalty, worst, rho.weight)

    def _run(self, x: Tensor, y: Tensor, z: Tensor, numbers: Tensor) -> Result:
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        buffers, rho = dict(self.model.named_buffers()), _with_numbers(self.rho, numbers)
        if rho.change.terms:
            assert isinstance(rho.by, PGD)
            for _ in range(rho.by.steps):
                z = self._attack(parameters, buffers, x, z, y, numbers)
        gradients, loss, penalty = self._update(parameters, buffers, x, z, y, numbers)
        return gradients, loss, penalty, z

    def _attack_step(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        z: Tensor,
        y: Tensor,
        numbers: Tensor,
    ) -> Tensor:
        net, rho = self._bound.with_parameters(parameters, buffers), _with_numbers(self.rho, numbers)
        climb = grad_and_value(lambda v: rho.climbed(net, x, v, y))
        return next(rho.by.iterates(climb, x, rho.within, start=z))

    def _update_gradient(
        self,
        parameters: dict[str, Tensor],
        buffers: dict[str, Tensor],
        x: Tensor,
        z: Tensor,
        y: Tensor,
        numbers: Tensor,
    ) -> tuple[Named, Tensor, Tensor]:
        wanted = [name for name, p in self.model.named_parameters() if p.requires_grad]
        with torch.enable_grad():
            free = {name: parameters[name].detach().requires_grad_() for name in wanted}
            net = _OnceAt(x, self._bound.with_parameters({**parameters, **free}, buffers))
            rho = _with_numbers(self.rho, numbers)
            out = Rho(rho.clean(net, x, y), rho.penalty(net, x, z, y), z, rho.weight)
            gradients = torch.autograd.grad(out.value.sum(), list(free.values()), materialize_grads=True)
        return dict(zip(wanted, gradients, strict=True)), out.loss.detach(), out.penalty.detach()

    def _replay(self, *inputs: Tensor) -> Result:
        """Copy the inputs to fixed addresses and replay the whole step: one launch instead of thousands."""
        if self._graph is None:
            self._inputs = tuple(t.clone() for t in inputs)
            with tuned():
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):  # compilation and autotuning happen here, outside the capture
                    for _ in range(2):
                        self._run(*self._inputs)
                torch.cuda.current_stream().wait_stream(side)
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph):
                    self._outputs = self._run(*self._inputs)
        assert self._outputs is not None
        for place, value in zip(self._inputs, inputs, strict=True):
            place.copy_(value)
        self._graph.replay()
        gradients, loss, penalty, worst = self._outputs
        return gradients, loss.clone(), penalty.clone(), worst.clone()


def _chunked(part: object) -> bool:
    """Whether any IG inside a composition runs its nodes in chunks."""
    if isinstance(part, IG):
        return part.chunk is not None
    if isinstance(part, tuple):
        return any(_chunked(each) for each in part)
    return is_dataclass(part) and any(_chunked(getattr(part, each.name)) for each in fields(part))


class _OnceAt(Bound):
    """A bound network that runs once at x: ℓ(x) is the clean loss and part of ℓ(x') − ℓ(x)."""

    def __init__(self, x: Tensor, net: Bound) -> None:
        super().__init__(net.call, net.module, net.parameters, net.buffers, net.affine_split)
        self._x = x
        self._logits: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if x is not self._x:
            return super().__call__(x)
        if self._logits is None:
            self._logits = super().__call__(x)
        return self._logits


def _numbers(rho: Robust) -> list[float]:
    """Everything in an objective that a ramp may change: λ, the coefficients, ε and the step size."""
    found: list[Any] = [rho.weight, *(c for c, _ in rho.change.terms)]
    found += [c for c, _ in rho.attacked.terms] if rho.attacked else []
    found += [rho.within.radius] if isinstance(rho.within, LinfBall | LpBall) else []
    found += [rho.by.step_size] if isinstance(rho.by, PGD) else []
    return [float(n) for n in found]


def _with_numbers(rho: Robust, numbers: Tensor | None) -> Robust:
    """The objective with those numbers; with None all of them are 0, and what is left is what compiling depends on."""
    each: Iterator[Any] = iter([0.0] * len(_numbers(rho)) if numbers is None else numbers.unbind())

    def change(old: Change) -> Change:
        return Change(tuple((next(each), term) for _, term in old.terms))

    return replace(
        rho,
        weight=next(each),
        change=change(rho.change),
        attacked=rho.attacked and change(rho.attacked),
        within=replace(rho.within, radius=next(each)) if isinstance(rho.within, LinfBall | LpBall) else rho.within,
        by=replace(rho.by, step_size=next(each)) if isinstance(rho.by, PGD) else rho.by,
    )

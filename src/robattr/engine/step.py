"""One step of training as a function that returns gradients: eager, compiled, or replayed as one CUDA graph.

Each of these calls the objective's functions `clean`, `climbed` and `penalty`. λ, β, γ, ε and the step size enter the
compiled functions as tensors, so that ramps do not compile again:

    attack    z ↦ the next point of PGD in a ball, whose step follows ∇_z Σ climbed(x, z)
    climb     z ↦ (∇_z Σ climbed(x, z), climbed(x, z)) for every other adversary or neighbourhood, which run as they are
    update    θ ↦ ∇_θ Σ clean(x) + λ penalty(x, x*)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from robattr.engine.compiled import Backend, Compiled
from robattr.engine.cuda_graph import Graphed
from robattr.engine.numbers import form, numbers_of, stepwise, with_numbers, without_numbers
from robattr.engine.parts import Parts, same_draws
from robattr.engine.precision import precision
from robattr.engine.train_mode import train_mode_differs
from robattr.formula.ascent import PGD, grad_and_value, last_iterate
from robattr.formula.attribution import IG
from robattr.formula.checks import check_model
from robattr.formula.neighbourhoods import Rand
from robattr.formula.network import Bound, bind, second_order
from robattr.formula.objective import Joint, Rho, Robust

Named = dict[str, Tensor]
T = TypeVar("T")
Z = 3  # the place of z among the arguments of an attack step
MOST_FORMS = 16  # of the objective and the batch; an objective with a function that is made anew at every step has more


class Step:
    """Gradients of Σ ρ over a batch, into `parameter.grad`.

        step = Step(model, compiled=True)
        rho = step(objective, x, y, start=start)    # a detached Rho; model's .grad is set

    compiled    compile the attack step and the update (pays on long runs: it takes half a minute)
    graph       on a GPU, replay the step as a CUDA graph (pays at once, compiled or not)
    arithmetic  fp32, tf32 or bf16 for convolutions and matrix products
    backend     what compiles the traced functions (`robattr.engine.compiled.inductor`)

    PGD in a ball is compiled and replayed as a whole; for any other adversary or neighbourhood, the gradient that it
    climbs. Where neither applies (a part in train mode that changes outputs or buffers, chunked nodes, an objective
    without a hash) or compilation fails, the plain formula runs; results agree. `notes` says why, `seconds` how long
    compiling took. Where the memory of the device is too small, a batch runs in parts, with the same results.
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
        self._parts = Parts(release=self._plans.clear)  # graphs hold memory
        self._checked = False
        self._differs: dict[tuple[bool, ...], bool] = {}  # by which parts are in train mode

    def __call__(
        self, rho: Robust | Joint, x: Tensor, y: Tensor, *, start: Tensor | None = None, rand: Rand = torch.rand_like
    ) -> Rho:
        if not self._checked:  # once: a check waits for the device
            rho.check(self.model, x, y)
            self._checked = True
        if start is None and rho.change.terms:
            start = rho.start(x, rand)
        draws, parameters = same_draws(rand, len(x)), list(self.model.parameters())
        held = [p.grad for p in parameters]

        def run(part: slice) -> Rho:
            if part.start == 0:  # the first, or the first again
                for p in parameters:
                    p.grad = None
            own = start if start is None else start[:, part] if isinstance(rho, Joint) else start[part]
            return self._run(rho, x[part], y[part], own, draws(part))

        try:
            found = self.in_parts(run, x)
        except BaseException:
            for p, was in zip(parameters, held, strict=True):
                p.grad = was
            raise
        for p, was in zip(parameters, held, strict=True):
            p.grad = was if p.grad is None else p.grad if was is None else was.add_(p.grad)
        if len(found) == 1:
            return found[0]
        loss, penalty, worst = (
            torch.cat(each) for each in zip(*((r.loss, r.penalty, r.worst) for r in found), strict=True)
        )
        return replace(found[0], loss=loss, penalty=penalty, worst=worst)

    def in_parts(self, work: Callable[[slice], T], x: Tensor) -> list[T]:
        """The results of work(part) for the parts of the batch x: as many as the memory of the device asks for."""
        before = self._parts.count
        found = self._parts(work, len(x), divisible=lambda: not train_mode_differs(self.model, x[:2]))
        if self._parts.count > before:
            self.notes.append(f"the memory of the device is too small: a batch runs in {len(found)} parts")
        return found

    def _run(self, rho: Robust | Joint, x: Tensor, y: Tensor, start: Tensor | None, rand: Rand) -> Rho:
        if not (self.compiled or (self.graph and x.is_cuda)):
            return self._eager(rho, x, y, start, rand)
        trained = tuple(p.requires_grad for p in self.model.parameters())
        key = (without_numbers(rho), x.shape, x.dtype, x.device, y.shape, y.dtype, trained)
        if why := self._unfit(rho, x, key):
            if why not in self.notes:
                self.notes.append(why)
            return self._eager(rho, x, y, start, rand)
        if key not in self._plans:
            self._plans[key] = _Plan(self, rho)
        result = self._plans[key](rho, x, y, start, rand)
        self.seconds = sum(p.seconds for p in self._plans.values())
        return result

    def _eager(self, rho: Robust | Joint, x: Tensor, y: Tensor, start: Tensor | None, rand: Rand) -> Rho:
        with precision(self.arithmetic, x.device.type):
            out = rho.unchecked(self.model, x, y, start=start, rand=rand)
            out.value.sum().backward()
        return replace(out, loss=out.loss.detach(), penalty=out.penalty.detach())

    def _unfit(self, rho: Robust | Joint, x: Tensor, key: Any) -> str:
        """Why the compiled form does not apply, or an empty string."""
        mode = tuple(part.training for part in self.model.modules())
        if mode not in self._differs:
            self._differs[mode] = train_mode_differs(self.model, x)
        if self._differs[mode]:
            return "train mode changes the outputs or buffers of the model: the step runs eagerly"
        if _chunked(rho.change):
            return "nodes in chunks: the step runs eagerly, with flat memory"
        try:
            known = key in self._plans
        except TypeError as cause:
            return f"the objective has no hash ({cause}): the step runs eagerly; a frozen dataclass has one"
        if not known and len(self._plans) >= MOST_FORMS:
            return (
                f"the objective or the batch has more than {MOST_FORMS} forms, as where a function inside it is made "
                "anew at every step: the step runs eagerly"
            )
        return ""


class _Plan:
    """The functions of one form of objective and batch, compiled and replayed as CUDA graphs where asked."""

    def __init__(self, step: Step, rho: Robust | Joint) -> None:
        self.model, self.arithmetic, self.rho = step.model, step.arithmetic, form(rho)
        self._bound, self._stepwise = bind(step.model), stepwise(rho)
        self._compiled: list[Compiled] = []

        def compiled(function: Callable[..., Any], name: str, at: int | None = None) -> Callable[..., Any]:
            if not step.compiled:
                return function
            self._compiled.append(Compiled(function, name=name, backend=step.backend, at=at))
            return self._compiled[-1]

        def graphed(function: Callable[..., Any]) -> Callable[..., Any]:
            return Graphed(function) if step.graph else function

        search = self._attack_step if self._stepwise else self._climb
        terms = without_numbers(rho).terms
        made = {
            term: compiled(partial(search, term), "attack step", at=Z if self._stepwise else None)
            for term in dict.fromkeys(terms)
        }
        self._searches = [made[term] for term in terms]
        self._update = compiled(self._update_gradient, "gradient step")
        self._run = graphed(self._attack_and_update)
        self._climbs = [graphed(partial(self._with_weights, search)) for search in self._searches]
        self._end = graphed(partial(self._with_weights, self._update))
        self._found: list[list[float]] = []
        self._numbers: list[Tensor] = []  # those on the device, until a ramp changes them

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self._compiled)

    def __call__(self, rho: Robust | Joint, x: Tensor, y: Tensor, start: Tensor | None, rand: Rand) -> Rho:
        found = numbers_of(rho)
        if found != self._found:
            self._found, self._numbers = found, [torch.tensor(n, dtype=x.dtype, device=x.device) for n in found]
        numbers = self._numbers
        starts = [x] * len(rho.terms) if start is None else list(start) if isinstance(rho, Joint) else [start]
        with second_order(self.model), precision(self.arithmetic, x.device.type), torch.no_grad():
            z = [t.within.project(s, x) if t.change.terms else x for t, s in zip(rho.terms, starts, strict=True)]
            if self._stepwise:
                gradients, loss, penalty, worst = self._run(x, y, z, numbers)
            else:
                for j, term in enumerate(rho.terms):
                    if term.change.terms:
                        climb = partial(self._gradient_of_term, j, x, y, numbers[j])
                        z[j] = last_iterate(term.by, climb, x, term.within, start=z[j], rand=rand)
                gradients, loss, penalty = self._end(x, z, y, numbers)
                worst = z[0]
        for name, p in self.model.named_parameters():
            if p.requires_grad:
                # Laid out like the parameter, which fused optimisers ask for, and never the graph's own memory.
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.add_(gradients[name])
        return Rho(loss.clone(), penalty.clone(), worst.clone(), rho.weight)

    def _attack_and_update(self, x: Tensor, y: Tensor, z: list[Tensor], numbers: list[Tensor]) -> tuple[Any, ...]:
        """Gradients, loss, penalty and x* of the first term, of adversaries that go step by step."""
        worst = []
        for term, search, at, own in zip(self.rho.terms, self._searches, z, numbers, strict=True):
            assert isinstance(term.by, PGD)
            steps = term.by.steps if term.change.terms else 0
            worst.append(self._with_weights(partial(iterate, search, steps), x, at, y, own))
        return *self._with_weights(self._update, x, worst, y, numbers), worst[0]

    def _gradient_of_term(self, j: int, x: Tensor, y: Tensor, numbers: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """∇ and value of what adversary j climbs, copied from the memory of the graph, which the next call changes."""
        gradient, value = self._climbs[j](x, z, y, numbers)
        return gradient.clone(), value.clone()

    def _with_weights(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of (parameters, buffers, …) with those of the model."""
        parameters = {name: p.detach() for name, p in self.model.named_parameters()}
        return function(parameters, dict(self.model.named_buffers()), *args)

    def _climb(
        self, term: Robust, parameters: Named, buffers: Named, x: Tensor, z: Tensor, y: Tensor, numbers: Tensor
    ) -> tuple[Tensor, Tensor]:
        net, rho = self._bound.with_parameters(parameters, buffers), with_numbers(term, numbers)
        return grad_and_value(lambda v: rho.climbed(net, x, v, y))(z)

    def _attack_step(
        self, term: Robust, parameters: Named, buffers: Named, x: Tensor, z: Tensor, y: Tensor, numbers: Tensor
    ) -> Tensor:
        rho, climb = with_numbers(term, numbers), partial(self._climb, term, parameters, buffers, x)
        return next(iter(rho.by.iterates(lambda v: climb(v, y, numbers), x, rho.within, start=z)))

    def _update_gradient(
        self, parameters: Named, buffers: Named, x: Tensor, z: list[Tensor], y: Tensor, numbers: list[Tensor]
    ) -> tuple[Named, Tensor, Tensor]:
        wanted = [name for name, p in self.model.named_parameters() if p.requires_grad]
        with torch.enable_grad():
            free = {name: parameters[name].detach().requires_grad_() for name in wanted}
            net = _OnceAt(self.model, {**parameters, **free}, buffers, self._bound.affine_split, x=x)
            terms = tuple(map(with_numbers, self.rho.terms, numbers))
            loss = terms[0].clean(net, x, y)
            if isinstance(self.rho, Joint):
                out = Rho(loss, Joint(terms).penalty(net, x, z, y), z[0])
            else:
                out = Rho(loss, terms[0].penalty(net, x, z[0], y), z[0], terms[0].weight)
            gradients = torch.autograd.grad(out.value.sum(), list(free.values()), materialize_grads=True)
        return dict(zip(wanted, gradients, strict=True)), out.loss.detach(), out.penalty.detach()


def iterate(attack_step: Callable[..., Tensor], times: int, *args: Any) -> Tensor:
    """z after z ← attack_step(parameters, buffers, x, z, y, numbers) so many times."""
    if isinstance(attack_step, Compiled):
        return attack_step.iterate(times, *args)
    z: Tensor = args[Z]
    for _ in range(times):
        z = attack_step(*args[:Z], z, *args[Z + 1 :])
    return z


def _chunked(part: object) -> bool:
    """Whether any IG inside a composition runs its nodes in chunks."""
    if isinstance(part, IG):
        return part.chunk is not None
    if isinstance(part, tuple):
        return any(_chunked(each) for each in part)
    return is_dataclass(part) and any(_chunked(getattr(part, each.name)) for each in fields(part))


@dataclass(eq=False, repr=False, kw_only=True)
class _OnceAt(Bound):
    """A bound network that runs once at x: ℓ(x) is the clean loss and part of ℓ(x') − ℓ(x)."""

    x: Tensor
    logits: Tensor | None = field(default=None, init=False)

    def __call__(self, x: Tensor) -> Tensor:
        if x is not self.x:
            return super().__call__(x)
        if self.logits is None:
            self.logits = super().__call__(x)
        return self.logits

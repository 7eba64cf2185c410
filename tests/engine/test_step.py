"""Every fast path gives what the plain formula gives."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn import functional as F

from nets import NETS, UNIT, OldTanh, OwnActivation, OwnTanh, Residual, assert_rounding, conv, images, step_of
from robattr import (
    APGD,
    PGD,
    Best,
    Box,
    L1Ball,
    L2Ball,
    LinfBall,
    RandomSigns,
    Size,
    averaged,
    displacement,
    l2,
    objectives,
    power,
)
from robattr.engine import Compiled, Step, deterministic, layout, precision, tuned
from robattr.engine.compiled import (
    WrongWhenCompiled,
    _keep_cache,
    check_close,
    inductor,
    traced,
)
from robattr.engine.numbers import numbers_of
from robattr.engine.precision import SWITCHES
from robattr.engine.processes import World
from robattr.engine.traced_graph import trace
from robattr.engine.train_mode import train_mode_differs
from robattr.errors import CompilationFellBack, InvalidInput
from robattr.formula.neighbourhoods import Neighbourhood
from robattr.formula.network import bind, gradient
from robattr.formula.objective import Robust
from robattr.models import resnet
from robattr.training.state import TrainState
from robattr.training.step import train_step
from train_fixtures import QUICK

MAKE = {
    "natural": lambda w, e: objectives.natural(),
    "madry": lambda w, e: objectives.madry(LinfBall(e), PGD(2, e / 2)),
    "madry in l2": lambda w, e: objectives.madry(L2Ball(e), PGD(2, e)),
    "ig_norm": lambda w, e: objectives.ig_norm(w, LinfBall(e), PGD(2, e / 2), m=3, m_attack=2),
    "ig_sum_norm": lambda w, e: objectives.ig_sum_norm(w, LinfBall(e), PGD(2, e / 2), m=3, m_attack=2),
    "wasserstein": lambda w, e: objectives.wasserstein(objectives.spread(3), w, power(l2, 2) @ displacement, PGD(2, e)),
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(MAKE))
def test_compiled_is_eager(name: str, device: str) -> None:
    net = NETS["softplus"]().double().to(device)
    x, _, y = (t.to(device) for t in images())
    fast, plain = Step(net, compiled=True, backend=traced if device == "cpu" else inductor), Step(net)
    for weight, eps in ((1.0, 0.3), (0.5, 0.2)):  # a ramp changes numbers, and compiles nothing again
        rho = MAKE[name](weight, eps)
        start = LinfBall(eps).start(x)
        a, ours = step_of(fast, rho, x, y, start)
        b, theirs = step_of(plain, rho, x, y, start)
        assert_rounding([a.value], [b.value])
        assert_rounding([a.worst], [b.worst])
        assert_rounding(ours, theirs)
    assert len(fast._plans) == 1
    assert not fast.notes


def test_generated_code_takes_other_layouts_of_memory() -> None:
    a, b = torch.rand(3, 3), torch.rand(3, 3)
    product = Compiled(lambda a, b: a @ b, name="product")  # no kernel of its own: nothing for a C++ compiler
    for left, right in ((a, b[:1].expand(3, 3)), (a.t(), b), (a[:1].expand(3, 3), b.t())):
        torch.testing.assert_close(product(left, right), left @ right)
    assert not product.fell_back


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_layout_of_memory_changes_nothing(compiled: bool) -> None:
    torch.manual_seed(0)
    net = resnet(3, 1, width=2).double()
    x, y = 255 * torch.rand(3, 3, 8, 8, dtype=torch.float64), torch.arange(3)
    ball = LinfBall(8.0, (0.0, 255.0))
    rho, start = objectives.ig_norm(1.0, ball, PGD(1, 4.0), m=2, m_attack=2), ball.start(x)
    plain = step_of(Step(net), rho, x, y, start)
    last = torch.channels_last
    moved = copy.deepcopy(net).to(memory_format=last)
    step = Step(moved, compiled=compiled, backend=traced)
    out, gradients = step_of(step, rho, *(x.contiguous(memory_format=last), y, start.contiguous(memory_format=last)))
    assert_rounding([out.value], [plain[0].value])
    assert_rounding(gradients, plain[1])
    assert moved.stem.weight.grad.is_contiguous(memory_format=last)


@pytest.mark.parametrize(
    ("arithmetic", "on_gpu", "channels", "form"),
    [
        ("bf16", True, 3, torch.channels_last), ("bf16", True, 1, torch.channels_last),
        ("tf32", True, 3, torch.channels_last), ("tf32", True, 1, torch.contiguous_format),
        ("bf16", False, 3, torch.contiguous_format), ("fp32", True, 3, torch.contiguous_format),
    ],
)  # fmt: skip
def test_channels_come_last_where_it_pays(
    arithmetic: str, on_gpu: bool, channels: int, form: torch.memory_format
) -> None:
    x = SimpleNamespace(is_cuda=on_gpu, shape=(2, channels, 8, 8), dim=lambda: 4)
    assert layout(arithmetic, x) == form  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_add_up_like_torchs_and_fit_a_fused_optimiser(device: str) -> None:
    net = NETS["softplus"]().to(device)
    x, _, y = (t.to(device) for t in images())
    x, rho = x.float(), MAKE["madry"](1.0, 0.3)
    step = Step(net, compiled=True, backend=traced if device == "cpu" else inductor)
    start = rho.within.start(x)
    _, once = step_of(step, rho, x, y, start)
    step(rho, x, y, start=start)
    assert_rounding([p.grad for p in net.parameters()], [2 * g for g in once])
    assert all(p.grad.stride() == p.stride() for p in net.parameters())
    torch.optim.Adam(net.parameters(), fused=True).step()


def test_the_step_is_the_users_loop() -> None:
    net = NETS["leaky"]().double()
    x, _, y = images()
    rho = MAKE["ig_sum_norm"](0.1, 0.3)
    start = rho.within.start(x)
    out, ours = step_of(Step(net), rho, x, y, start)
    direct = rho(net, x, y, start=start)
    theirs = torch.autograd.grad(direct.value.sum(), list(net.parameters()))
    assert torch.equal(out.value, direct.value)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_every_way_to_run_the_formula_calls_the_same_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's loop, an eager, a compiled and a distributed step: `clean`, `climbed` and `penalty` of Robust."""
    called: list[str] = []
    for name in ("clean", "climbed", "penalty"):
        own = getattr(Robust, name)
        spied = lambda *args, name=name, own=own: (called.append(name), own(*args))[1]  # noqa: E731
        monkeypatch.setattr(Robust, name, spied)
    net = NETS["softplus"]().double()
    x, _, y = images()
    rho = MAKE["ig_norm"](1.0, 0.3)
    fast = Step(net, compiled=True, backend=traced)
    world, summed = World(0, 1, torch.device("cpu")), []
    monkeypatch.setattr(World, "total", lambda _, flat: (summed.append(flat), flat)[1])

    def state(engine: Step) -> TrainState:
        return TrainState(net, torch.optim.SGD(net.parameters(), lr=0.0), rho, engine, data="")

    ways = {
        "loop": lambda: rho(net, x, y).value.mean().backward(),
        "eager": lambda: Step(net)(rho, x, y),
        "compiled": lambda: fast(rho, x, y),
        "distributed": lambda: train_step(state(Step(net)), QUICK, x, y, batch=len(x), world=world),
        "distributed, compiled": lambda: train_step(
            state(Step(net, compiled=True, backend=traced)), QUICK, x, y, batch=len(x), world=world
        ),
    }
    for name, run in ways.items():
        called.clear()
        run()
        assert set(called) == {"clean", "climbed", "penalty"}, name
    assert [flat.dim() for flat in summed] == [1, 1]  # one flat all_reduce each
    called.clear()
    fast(rho, x, y)
    assert not called  # what was compiled does not run again


def test_one_step_takes_labels_of_several_kinds() -> None:
    net, (x, _, y) = NETS["relu"]().double(), images()
    fast, plain = Step(net, compiled=True, backend=traced), Step(net)
    rho, start = MAKE["madry"](1.0, 0.3), LinfBall(0.3).start(x)
    for labels in (y, F.one_hot(y, 3).to(x), y.int()):
        (a, ours), (b, theirs) = (step_of(step, rho, x, labels, start) for step in (fast, plain))
        assert_rounding([a.loss], [b.loss])
        assert_rounding(ours, theirs)


def test_the_update_runs_the_network_once_at_x_and_once_at_the_worst_point() -> None:
    """ℓ(x) is the clean loss and part of ℓ(x') − ℓ(x): both use one forward pass."""
    net, (x, _, y) = conv(nn.Tanh()).double(), images()
    step = Step(net, compiled=True, backend=traced)
    rho = MAKE["madry"](1.0, 0.3)
    step(rho, x, y, start=rho.within.start(x))
    plan = next(iter(step._plans.values()))
    parameters, buffers = ({n: t.detach() for n, t in each} for each in (net.named_parameters(), net.named_buffers()))
    numbers = [torch.ones(len(own), dtype=x.dtype) for own in numbers_of(rho)]
    graph, _, _ = trace(plan._update_gradient, (parameters, buffers, x, [x + 0.1], y, numbers))
    targets = [n.target for n in graph.graph.nodes]
    convolutions = sum(isinstance(m, nn.Conv2d) for m in net.modules())
    assert targets.count(torch.ops.aten.convolution.default) == 2 * convolutions > 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU")
def test_real_kernels_on_a_cpu() -> None:
    """Generated code for the second derivative of a convolution and a pool, and no warning of the compiler's."""
    inductor_config = pytest.importorskip("torch._inductor.config")
    quick = {
        "compile_threads": 1,  # workers would each import torch
        "cpp_cache_precompile_headers": False,  # longer than the kernels themselves
        "cpp.vec_isa_ok": False,  # a program for each vector unit: make compiled
    }
    net = bind(nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Softplus()).double())

    def update(w: Tensor, x: Tensor) -> Tensor:
        with torch.enable_grad():
            free = net.with_parameters({**net.parameters, "0.weight": w.detach().requires_grad_()})
            size = gradient(lambda v: free(v).flatten(1).sum(1), x).abs().sum()
            return torch.autograd.grad(size, free.parameters["0.weight"])[0]

    fast, given = Compiled(update, name="update"), (net.parameters["0.weight"].detach(), images(2)[0][..., :6, :6])
    with inductor_config.patch(quick):
        assert_rounding([fast(*given)], [update(*given)])
    assert not fast.fell_back
    assert fast.seconds > 0


class Elsewhere:
    """A custom ascent."""

    def iterates(self, grad, x: Tensor, within: Neighbourhood, *, start: Tensor, rand=torch.rand_like):
        yield within.project(x + 0.1, x)


class Momentum(PGD):
    """Keeps a state between its steps, so that it must not be compiled step by step."""

    def iterates(self, grad, x: Tensor, within: Neighbourhood, *, start: Tensor, rand=torch.rand_like):
        z, v = start, torch.zeros_like(x)
        for _ in range(self.steps):
            v = 0.9 * v + grad(z)[0]
            z = within.project(z + self.step_size * within.direction(v), x)
            yield z


@dataclass
class Stripe:
    """A custom neighbourhood, without a hash: the first columns, with a step that reads numbers back."""

    radius: float
    bounds = (0.0, 1.0)

    def start(self, x: Tensor, rand=torch.rand_like) -> Tensor:
        return self.project(rand(x), x)

    def direction(self, g: Tensor) -> Tensor:
        return g / max(float(g.abs().max()), 1e-12)

    def project(self, z: Tensor, x: Tensor) -> Tensor:
        inside = torch.arange(x.shape[-1], device=x.device) < 4
        return torch.where(inside, z.clamp(x - self.radius, x + self.radius).clamp(0, 1), x)


ADVERSARIES = {
    "momentum": lambda e: objectives.madry(LinfBall(e), Momentum(2, e / 2)),
    "without a gradient": lambda e: objectives.madry(LinfBall(e), Elsewhere()),
    "random signs": lambda e: objectives.madry(LinfBall(e), RandomSigns(2, e)),
    "apgd": lambda e: objectives.ig_norm(e, LinfBall(e), APGD(4, e), m=2, m_attack=2),
    "restarts": lambda e: objectives.ig_sum_norm(e, L2Ball(e), Best(PGD(2, e), restarts=2), m=2, m_attack=2),
    "own neighbourhood": lambda e: objectives.igr(e, Stripe(e), PGD(2, e / 2)),
    "l1 ball": lambda e: objectives.madry(L1Ball(e), PGD(2, e)),
    "box": lambda e: objectives.madry(Box(torch.full((8, 8), e), 0.0), PGD(2, e / 2)),
    "two adversaries": lambda e: (
        objectives.madry(L2Ball(e), PGD(2, e)) + replace(MAKE["ig_norm"](e, e), by=Best(PGD(2, e / 2)))
    ),
    "two of a kind": lambda e: averaged(objectives.madry(LinfBall(e), PGD(2, e / 2)), 2) + objectives.natural(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ADVERSARIES)
def test_every_adversary_climbs_a_compiled_gradient(name: str, device: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Softplus(), nn.Linear(4, 3)).double().to(device)
    x, _, y = (t.to(device) for t in images())
    fast, plain = Step(net, compiled=True, backend=traced), Step(net)
    for eps in (0.3, 0.2):  # a ramp changes numbers, and compiles nothing again
        found = []
        for step in (fast, plain):
            torch.manual_seed(5)  # of the start, and of what the adversary draws
            step.model.zero_grad()
            out = step(ADVERSARIES[name](eps), x, y)
            found.append(([out.value, out.worst], [p.grad.clone() for p in net.parameters()]))
        for ours, theirs in zip(*found, strict=True):
            assert_rounding(ours, theirs)
    (plan,) = fast._plans.values()
    assert not fast.notes
    assert len(plan._compiled) == 3 if name == "two adversaries" else len(plan._compiled) <= 3
    assert not any(part.fell_back for part in plan._compiled)
    assert bool(plan._compiled[0].seconds) == (name not in ("without a gradient", "random signs"))


@pytest.mark.parametrize(
    "rho",
    [
        objectives.interval_bound(0.1, Box(torch.full((8, 8), 0.1), 0.1)),
        objectives.interval_bound(0.1, LinfBall(0.1), 0.5) + objectives.madry(LinfBall(0.1), Best(PGD(2, 0.05), 2)),
    ],
)
def test_a_bound_over_a_neighbourhood_keeps_it_where_the_adversary_runs_eagerly(rho: Robust) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    x, _, y = images()
    found = []
    for step in (Step(net, compiled=True, backend=traced), Step(net)):
        torch.manual_seed(5)
        net.zero_grad()
        found.append(([step(rho, x, y).value], [p.grad.clone() for p in net.parameters()]))
        assert not step.notes
    for ours, theirs in zip(*found, strict=True):
        assert_rounding(ours, theirs)


@dataclass
class Unhashed:
    """An attribution of the user's, a dataclass that is not frozen."""

    scale: float

    def __call__(self, model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return self.scale * (model(x1) - model(x))


@pytest.mark.parametrize(
    ("model", "rho", "words"),
    [
        (Residual, MAKE["ig_norm"](1.0, 0.3), "train mode"),
        (NETS["relu"], objectives.ig_norm(1.0, LinfBall(0.3), PGD(2, 0.1), m=3, m_attack=2, chunk=1), "chunks"),
        (NETS["relu"], objectives.igr(1.0, LinfBall(0.3), PGD(2, 0.1), objectives.baseline_ig(3, chunk=1)), "chunks"),
        (NETS["relu"], Robust(l2 @ Unhashed(2.0), LinfBall(0.3), PGD(2, 0.1)), "no hash (unhashable type: 'Unhashed'"),
    ],
    ids=["train mode", "chunks", "chunks of a map", "no hash"],
)
def test_what_cannot_be_compiled_runs_eagerly_and_says_so(model, rho: Robust, words: str) -> None:
    net = model().double()
    x, _, y = images()
    start = rho.within.start(x)
    fast = Step(net, compiled=True, backend=traced)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    a, ours = step_of(fast, rho, x, y, start)
    net.load_state_dict(state)  # a batch-norm layer has moved its statistics
    b, theirs = step_of(Step(net), rho, x, y, start)
    assert words in fast.notes[0]
    assert_rounding([a.value], [b.value])
    assert_rounding(ours, theirs)


def test_an_objective_that_is_another_one_at_every_step_is_not_compiled_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("robattr.engine.step.MOST_FORMS", 2)
    net, (x, _, y) = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double(), images()
    step = Step(net, compiled=True, backend=traced)
    for _ in range(4):
        own = Size(lambda a: a.abs().sum(1))  # made anew
        step(Robust(own @ displacement, LinfBall(0.3), PGD(0, 0.0)), x, y)
    assert len(step._plans) == 2
    assert "more than 2 forms" in step.notes[0]


def test_frozen_batch_norm_compiles() -> None:
    net = Residual().double().train()
    net.norm.eval()
    x, _, y = images()
    rho, start = MAKE["ig_norm"](1.0, 0.3), LinfBall(0.3).start(x)
    fast = Step(net, compiled=True, backend=traced)
    (_, ours), (_, theirs) = (step_of(step, rho, x, y, start) for step in (fast, Step(net)))
    assert not fast.notes
    assert_rounding(ours, theirs)


class Dropping(nn.Module):
    """Dropout by function, which no list of layers shows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(nn.functional.dropout(x.flatten(1), 0.5, self.training))


class Counting(nn.Module):
    """A statistic of its own, which training moves."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 3)
        self.register_buffer("mean", torch.zeros(64, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if self.training:
            self.mean.lerp_(flat.detach().mean(0), 0.1)
        return self.inner(flat)


class Buffered(nn.Module):
    """Writes its buffer in train mode, as `write` says."""

    def __init__(self, value: Tensor, write: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.write = nn.Linear(64, 3), write
        self.register_buffer("held", value)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.held = self.write(self.held)
        return self.inner(x.flatten(1))


@pytest.mark.parametrize(
    ("value", "write"),
    [
        (torch.tensor(5000.0), lambda t: t.add_(1)),
        (torch.ones(3), lambda t: t.lerp_(torch.zeros(3), 1e-5)),
        (torch.ones(3), lambda t: torch.cat([t, t])),
        (torch.tensor([1.0, float("nan")]), lambda t: t + 0),
    ],
)
def test_a_buffer_that_moves_by_little_or_grows_is_noticed_and_put_back(value: Tensor, write) -> None:
    net = Buffered(value.clone(), write).train()
    same = bool(value.isnan().any())  # equal to the last bit, NaN included
    assert train_mode_differs(net, images()[0].float()) != same
    torch.testing.assert_close(net.held, value, rtol=0, atol=0, equal_nan=True)


def test_a_layer_that_is_seldom_dropped_is_noticed() -> None:
    class Seldom(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x if self.training and float(torch.rand(())) < 1e-6 else super().forward(x)

    assert train_mode_differs(nn.Sequential(nn.Flatten(), Seldom(64, 64).double()), images()[0])


def test_a_layer_can_be_frozen_and_released_between_compiled_steps() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Softplus(), nn.Linear(4, 3)).double()
    x, _, y = images()
    rho = MAKE["ig_norm"](1.0, 0.3)
    fast, start = Step(net, compiled=True, backend=traced), rho.within.start(x)
    for released in (False, True):
        net[1].requires_grad_(released)
        _, ours = step_of(fast, rho, x, y, start)
        _, theirs = step_of(Step(net), rho, x, y, start)
        torch.testing.assert_close(ours, theirs)
    assert not fast.notes


@pytest.mark.parametrize(
    "make", [Dropping, Counting, lambda: nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(64, 3))]
)
def test_a_model_that_differs_in_train_mode_runs_eagerly(make) -> None:
    net = make().double().train()
    x, _, y = images()
    rho = MAKE["ig_norm"](1.0, 0.3)
    fast, before = Step(net, compiled=True, backend=traced), {k: v.clone() for k, v in net.state_dict().items()}
    x = x - 0.5 if isinstance(net, nn.Sequential) else x  # a random slope shows below 0 alone
    rho = replace(rho, within=replace(rho.within, bounds=None))
    assert train_mode_differs(net, x)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())  # trying it leaves no trace
    state, start = torch.get_rng_state(), rho.within.start(x)
    torch.set_rng_state(state)
    a, ours = step_of(fast, rho, x, y, start)
    net.load_state_dict(before)
    torch.set_rng_state(state)
    b, theirs = step_of(Step(net), rho, x, y, start)
    assert fast.notes == ["train mode changes the outputs or buffers of the model: the step runs eagerly"]
    torch.testing.assert_close(a.value, b.value)
    torch.testing.assert_close(ours, theirs)
    assert not train_mode_differs(net.eval(), x)
    still = Step(net, compiled=True, backend=traced)
    step_of(still, rho, x, y, start)
    assert not still.notes
    net.train()
    step_of(still, rho, x, y, start)
    assert still.notes == fast.notes  # the mode is looked at again


class Branches(nn.Module):
    """A forward pass that depends on the numbers: no graph holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(1)) if x.sum() > 0 else 2 * self.inner(x.flatten(1))


def test_a_model_that_does_not_compile_falls_back_with_one_warning() -> None:
    net = Branches().double()
    x, _, y = images()
    rho = MAKE["madry"](1.0, 0.3)
    start = rho.within.start(x)
    fast = Step(net, compiled=True, backend=traced)
    with pytest.warns(CompilationFellBack) as seen:
        a, ours = step_of(fast, rho, x, y, start)
    said = [str(w.message) for w in seen]
    assert [" ".join(words.split()[:3]) for words in said] == ["the attack step", "the gradient step"]
    assert all("could not be compiled and runs eagerly" in words and "Data" in words for words in said)
    step_of(fast, rho, x, y, start)  # a second warning would be an error here
    b, theirs = step_of(Step(net), rho, x, y, start)
    assert_rounding([a.value], [b.value])
    assert_rounding(ours, theirs)


def test_a_compilers_warnings_are_not_the_users_and_do_not_stop_it() -> None:
    def talkative(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        warnings.warn("TensorFloat32 tensor cores available", UserWarning, stacklevel=1)

        def first(*args: Tensor) -> Any:
            warnings.warn("Online softmax is disabled on the fly", UserWarning, stacklevel=1)
            return graph.forward(*args)

        return first

    fast = Compiled(lambda a: 2 * a, name="double", backend=talkative)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fast(torch.tensor(3.0)) == 6.0
    assert not fast.fell_back


def test_a_compiled_function_sees_what_it_holds_change() -> None:
    """Tensors that are not arguments are inputs of the graph, not numbers in it."""
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    times = Compiled(lambda a: {"product": w.detach() * a}, name="product", backend=traced)
    assert times(torch.ones(2))["product"].tolist() == [2.0, 3.0]
    with torch.no_grad():
        w.mul_(2)
    assert times(torch.ones(2))["product"].tolist() == [4.0, 6.0]


def test_compiled_reports_its_time_and_keeps_its_result() -> None:
    twice = Compiled(lambda a: 2 * a, name="double", backend=traced)
    assert twice(torch.tensor(3.0)) == 6.0
    assert twice.seconds > 0
    assert not twice.fell_back


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # what a CPU without bf16 units says
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("device", DEVICES)
def test_bf16_stays_within_its_stated_error(device: str, compiled: bool) -> None:
    """‖IG‖₁ against float64. Three layers round their two operands and their result, forward and backward: 18 u.

    Softplus and the path do not amplify: their slopes are at most 1.
    """
    net = conv(nn.Softplus()).double().to(device)
    x, _, y = (t.to(device) for t in images())
    rho = objectives.ig_norm(1.0, LinfBall(0.3), PGD(0, 0.0), m=2, m_attack=2)
    start = rho.within.start(x)
    exact = rho(net, x, y, start=start).penalty.detach()
    low = Step(net.float(), arithmetic="bf16", compiled=compiled, backend=traced)
    found = low(rho, x.float(), y, start=start.float()).penalty.double()
    assert not low.notes
    error = float((found - exact).abs().max() / exact.max())
    assert 18 * UNIT[torch.float32] < error <= 18 * UNIT[torch.bfloat16], "in bf16, and no worse"


@pytest.mark.parametrize("function", [OwnTanh, OldTanh])
def test_a_model_with_an_autograd_function_of_its_own_compiles(function: type[torch.autograd.Function]) -> None:
    net = conv(OwnActivation(function)).double()
    x, _, y = images()
    rho, start = MAKE["ig_norm"](1.0, 0.3), LinfBall(0.3).start(x)
    fast, plain = Step(net, compiled=True, backend=traced), Step(conv(nn.Tanh()).double())
    plain.model.load_state_dict(net.state_dict())
    (a, ours), (b, theirs) = (step_of(step, rho, x, y, start) for step in (fast, plain))
    assert not fast.notes
    assert_rounding([a.worst], [b.worst])
    assert_rounding(ours, theirs)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [(1.002, "0.002 of its size away from the float32 result"), (float("nan"), "NaN where")],
)
def test_a_wrong_compiled_result_is_not_used(spoil: float, words: str) -> None:
    def backend(graph: GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        return lambda *args: [spoil * out if out.is_floating_point() else out for out in graph.forward(*args)]

    twice = Compiled(lambda a: {"double": 2 * a, "whole": (a.long(), 3 * a)}, name="double", backend=backend)
    a = torch.rand(5)
    with pytest.warns(CompilationFellBack, match=f"WrongWhenCompiled: {words}"):
        out = twice(a)
    assert twice.fell_back
    for answer in (out, twice(a)):
        assert torch.equal(answer["double"], 2 * a)


def test_a_wrong_gradient_beside_a_large_output_is_not_used() -> None:
    def backend(graph: GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        return lambda *args: [0 * found if at == 0 else found for at, found in enumerate(graph.forward(*args))]

    pull = Compiled(lambda a: (0.01 * a.cos(), 100 + a), name="pull", backend=backend)
    a = torch.rand(5)
    with pytest.warns(CompilationFellBack, match="WrongWhenCompiled: 1 of its size away"):
        pull(a)
    still = Compiled(lambda a: (1e-12 * a.cos(), 100 + a), name="pull", backend=backend)
    still(a)  # rounding alone
    assert not still.fell_back


@pytest.mark.parametrize(("error", "accepted"), [(1.5, True), (3.0, False)])
def test_in_reduced_precision_a_compiled_result_may_be_as_inexact_as_the_eager_one(
    error: float, accepted: bool
) -> None:
    """Within twice the eager result's distance from float32, both far above float32's own rounding."""
    a = torch.rand(5)
    exact, eager = {"double": 2 * a}, {"double": 2 * a * (1 + 0.01)}
    out = {"double": 2 * a * (1 + 0.01 * error)}
    if accepted:
        check_close(out, eager, lambda: (exact, eager))
    else:
        with pytest.raises(WrongWhenCompiled, match="of its size away from the float32"):
            check_close(out, eager, lambda: (exact, eager))


def test_an_infinite_loss_hides_no_wrong_gradient() -> None:
    inf = torch.tensor([float("inf")])
    right, wrong = torch.tensor([1.0, 2.0]), torch.tensor([100.0, -5.0])
    with pytest.raises(WrongWhenCompiled, match="of its size away"):
        check_close((wrong, inf), (right, inf), lambda: ((right, inf), (right, inf)))
    with pytest.raises(WrongWhenCompiled, match="infinite where the eager result is finite"):
        check_close((right, inf), (right, torch.ones(1)), lambda: ((right, inf), (right, inf)))
    check_close((right, inf), (right, inf), lambda: ((right, inf), (right, inf)))


def test_a_compiled_result_may_be_as_far_as_the_rounding_of_its_arguments_moves_the_eager_one() -> None:
    """Signs that rounding flips: sign(x − c) at x near c, as behind fifty layers in float32."""
    a = torch.linspace(1 - 2e-7, 1 + 2e-7, 101)  # about a float32 apart

    def signs(a: Tensor, c: float = 1.0) -> Tensor:
        return (a - c).sign() + 3.0

    def backend(graph: GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        return lambda a: [signs(a, 1.0 + 1e-7)]

    flips = Compiled(signs, name="signs", backend=backend)
    assert float((signs(a) - signs(a, 1.0 + 1e-7)).norm() / signs(a).norm()) > 0.05
    flips(a)  # a fall-back to eager would be an error
    assert not flips.fell_back


def test_where_the_plain_function_has_no_memory_the_compiled_one_is_taken() -> None:
    calls: list[int] = []

    def twice(a: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return 2 * a

    lean = Compiled(twice, name="double", backend=traced)
    assert lean(torch.tensor(3.0)) == 6.0
    assert not lean.fell_back


def test_nan_where_the_plain_function_has_one_is_no_reason_to_fall_back() -> None:
    root = Compiled(lambda a: a.sqrt(), name="root", backend=traced)
    assert root(torch.tensor([-1.0, 4.0])).isnan().tolist() == [True, False]
    assert not root.fell_back


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # what a CPU without bf16 units says
def test_bf16_leaves_the_fast_products_of_float32_on() -> None:
    """On a CPU without bf16 units torch answers the first bf16 product by turning oneDNN off, for all that follows."""
    before = torch.backends.mkldnn.enabled
    a = torch.rand(64, 128)
    with precision("bf16", "cpu"):
        torch.nn.functional.linear(a, torch.rand(32, 128), torch.rand(32))
    assert torch.backends.mkldnn.enabled == before
    with precision("bf16", "cpu"):
        torch.backends.mkldnn.enabled = False
    assert torch.backends.mkldnn.enabled == before


def test_a_precision_within_another_is_its_own() -> None:
    with precision("bf16", "cpu"), precision("fp32", "cpu"):
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_precision_and_determinism_leave_no_trace() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled()
    for name in ("fp32", "tf32", "bf16"):
        with precision(name, "cpu"), deterministic():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.backends.cuda.matmul.allow_tf32 == (name != "fp32")
            assert torch.is_autocast_enabled("cpu") == (name == "bf16")
    assert before == (torch.backends.cuda.matmul.allow_tf32, torch.are_deterministic_algorithms_enabled())
    with pytest.raises(InvalidInput, match="bf16"), precision("bf17"):
        pass
    usual = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with precision("fp32", "cpu"):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(usual)


EVERY_SWITCH = (*SWITCHES, torch.backends)


@pytest.mark.parametrize("switch", EVERY_SWITCH)
@pytest.mark.parametrize("value", ["ieee", "tf32"])
def test_precision_where_the_user_has_set_fp32_precision(switch: Any, value: str) -> None:
    """Once that was set, torch refuses to read its older switches."""
    usual = [each.fp32_precision for each in EVERY_SWITCH]
    try:
        with precision("tf32", "cpu"):
            pass
        switch.fp32_precision = value
        before = [each.fp32_precision for each in EVERY_SWITCH]
        for name in ("fp32", "tf32", "bf16"):
            with precision(name, "cpu"):
                assert {each.fp32_precision for each in SWITCHES} == {"ieee" if name == "fp32" else "tf32"}
        assert [each.fp32_precision for each in EVERY_SWITCH] == before
    finally:
        for each, kept in zip(EVERY_SWITCH, usual, strict=True):
            each.fp32_precision = kept


def test_cudnn_is_tuned_for_a_while_and_never_where_runs_must_repeat() -> None:
    before = torch.backends.cudnn.benchmark
    with tuned():
        assert torch.backends.cudnn.benchmark
        with deterministic(), tuned():
            assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before


def test_compiled_code_is_cached_apart_for_each_kind_of_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directories = pytest.importorskip("torch._inductor.runtime.cache_dir_utils")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", directories.default_cache_dir())  # as torch itself sets it
    _keep_cache()
    kind = torch.backends.cpu.get_cpu_capability()
    assert directories.cache_dir() == str(tmp_path / "robattr" / "compiled" / kind)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "chosen"))
    _keep_cache()
    assert directories.cache_dir() == str(tmp_path / "chosen")
    file = tmp_path / "file"
    file.touch()
    for home, cache in (("", tmp_path / ".cache" / "robattr" / "compiled" / kind), (str(file), None)):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", home)  # empty: as if it were not set; a file: no folder can be made in it
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", directories.default_cache_dir())
        _keep_cache()
        assert directories.cache_dir() == str(cache or directories.default_cache_dir())

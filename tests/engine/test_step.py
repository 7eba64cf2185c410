"""Every fast path gives what the plain formula gives."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from nets import NETS, OldTanh, OwnActivation, OwnTanh, Residual, conv, images
from robattr import PGD, L2Ball, LinfBall, displacement, l2, objectives, power
from robattr.engine import Compiled, Step, deterministic, kernels, layout, own_function, precision, tuned
from robattr.engine.compiled import restless
from robattr.errors import InvalidInput
from robattr.formula.objective import Rho, Robust
from robattr.models import paper_cnn, resnet

MAKE = {
    "natural": lambda w, e: objectives.natural(),
    "madry": lambda w, e: objectives.madry(LinfBall(e), PGD(2, e / 2)),
    "madry in l2": lambda w, e: objectives.madry(L2Ball(e), PGD(2, e)),
    "ig_norm": lambda w, e: objectives.ig_norm(w, LinfBall(e), PGD(2, e / 2), m=3, m_attack=2),
    "ig_sum_norm": lambda w, e: objectives.ig_sum_norm(w, LinfBall(e), PGD(2, e / 2), m=3, m_attack=2),
}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def step_of(step: Step, rho: Robust, x: Tensor, y: Tensor, start: Tensor) -> tuple[Rho, list[Tensor]]:
    step.model.zero_grad()
    out = step(rho, x, y, start=start)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in step.model.parameters()]
    return out, gradients


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(MAKE))
def test_compiled_is_eager(name: str, device: str) -> None:
    net = NETS["softplus"]().double().to(device)
    x, _, y = (t.to(device) for t in images())
    fast, plain = Step(net, compiled=True, backend="aot_eager" if device == "cpu" else "inductor"), Step(net)
    for weight, eps in ((1.0, 0.3), (0.5, 0.2)):  # a ramp changes numbers, and compiles nothing again
        rho = MAKE[name](weight, eps)
        start = LinfBall(eps).start(x)
        a, ours = step_of(fast, rho, x, y, start)
        b, theirs = step_of(plain, rho, x, y, start)
        torch.testing.assert_close(a.value, b.value, rtol=1e-9, atol=1e-10)
        if rho.change.terms:
            torch.testing.assert_close(a.worst, b.worst, rtol=1e-9, atol=1e-10)
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-9)
    assert len(fast._plans) == 1
    assert not fast.notes


def test_many_nets_compile_in_one_process() -> None:
    """torch compiles one code for eight variants and then gives up."""
    x = torch.rand(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(12):
            net = nn.Sequential(*[nn.Linear(3, 3) for _ in range(n + 1)])

            def slope(x: Tensor, net: nn.Module = net) -> Tensor:
                return torch.func.grad(lambda v: net(v).square().sum())(x)

            fast = Compiled(slope, name="slope", backend="aot_eager")
            torch.testing.assert_close(fast(x), slope(x))
            assert not fast.fell_back


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_layout_of_memory_changes_nothing(compiled: bool) -> None:
    torch.manual_seed(0)
    net = resnet(3, 1).double()
    x, y = 255 * torch.rand(3, 3, 8, 8, dtype=torch.float64), torch.arange(3)
    ball = LinfBall(8.0, (0.0, 255.0))
    rho, start = objectives.ig_norm(1.0, ball, PGD(2, 4.0), m=3, m_attack=2), ball.start(x)
    plain = step_of(Step(net), rho, x, y, start)
    last = torch.channels_last
    moved = copy.deepcopy(net).to(memory_format=last)
    step = Step(moved, compiled=compiled, backend="aot_eager")
    out, gradients = step_of(step, rho, *(x.contiguous(memory_format=last), y, start.contiguous(memory_format=last)))
    torch.testing.assert_close(out.value, plain[0].value, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(gradients, plain[1], rtol=1e-8, atol=1e-9)
    assert moved.stem.weight.grad.is_contiguous(memory_format=last)


@pytest.mark.parametrize(
    ("arithmetic", "on_gpu", "channels", "form"),
    [
        ("bf16", True, 3, torch.channels_last), ("bf16", True, 1, torch.contiguous_format),
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
    step = Step(net, compiled=True, backend="aot_eager" if device == "cpu" else "inductor")
    start = rho.within.start(x)
    _, once = step_of(step, rho, x, y, start)
    step(rho, x, y, start=start)
    for p, g in zip(net.parameters(), once, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, 2 * g, rtol=1e-4, atol=1e-6)
        assert p.grad.stride() == p.stride()
    torch.optim.Adam(net.parameters(), fused=True).step()


def test_the_step_is_the_users_loop() -> None:
    net = NETS["leaky"]().double()
    x, _, y = images()
    rho = MAKE["ig_sum_norm"](0.1, 0.3)
    start = rho.within.start(x)
    out, ours = step_of(Step(net), rho, x, y, start)
    direct = rho(net, x, y, start=start)
    theirs = torch.autograd.grad(direct.value.sum(), list(net.parameters()))
    torch.testing.assert_close(out.value, direct.value.detach())
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_derivatives_in_kernels_run_as_such_on_a_gpu(form: torch.memory_format) -> None:
    """The pass over the compiler's graph: as many rewritten as there are kernels, and nothing changes."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.Softplus(), nn.Conv2d(3, 4, 3, stride=2), nn.Softplus(),
        nn.Conv2d(4, 5, 3, stride=2, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(5 * 4 * 4, 3),
    ).double()  # fmt: skip
    net, x = net.to(memory_format=form), torch.rand(4, 2, 16, 16, dtype=torch.float64).contiguous(memory_format=form)
    y, step = torch.tensor([0, 1, 2, 0]), 0.1 * torch.randn_like(x)
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def penalty(weights: dict[str, Tensor], x: Tensor, y: Tensor, step: Tensor) -> Tensor:
        g = torch.func.grad(lambda v: F.cross_entropy(torch.func.functional_call(net, weights, v), y))(x)
        return (step * g).abs().sum()

    given = weights, x, y, step
    traced = make_fx(torch.func.grad(penalty), tracing_mode="fake")(*given)
    expected = traced(*given)
    assert kernels.kernel_gradients(traced.graph) == 3
    traced.recompile()
    assert "convolution_backward" in traced.code
    found = traced(*given)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Softplus])
@pytest.mark.parametrize("scale", [1.0, 1e-28, 1e12, 0.0])
def test_input_gradients_in_half_precision_keep_tf32s_error_and_float32s_range(
    scale: float, activation: type[nn.Module]
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), activation(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5, padding=2), activation(),
        nn.Conv2d(16, 8, 3, stride=2), nn.Flatten(), nn.Linear(8 * 5 * 5, 3),
    )  # fmt: skip
    x = torch.rand(4, 1, 24, 24)

    def gradient(x: Tensor) -> Tensor:
        return torch.func.grad(lambda v: scale * net(v).square().sum())(x)

    weights = {name: p.detach() for name, p in net.named_parameters() if name.endswith("weight")}

    def of_weights(x: Tensor, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return torch.func.grad(lambda w: scale * torch.func.functional_call(net, w, x).square().sum())(weights)

    from torch._inductor.decomposition import decompositions

    aten = torch.ops.aten
    table = {op: decompositions[op] for op in (aten.threshold_backward.default, aten.softplus_backward.default)}
    with torch.no_grad():
        for fn, given, many in ((gradient, (x,), 2), (of_weights, (x, weights), 2)):  # the first has one channel
            traced = make_fx(fn, table, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
            slopes: list[Any] = [n.args[0] for n in traced.graph.nodes if n.target is aten.convolution_backward.default]
            assert sum(kernels._chosen_from(g) is not g for g in slopes) == 3
            expected = fn(*given)
            assert kernels.half_input_gradients(traced.graph) == many
            traced.graph.lint()
            traced.recompile()
            found = traced(*given)
            pairs = [(found, expected)] if fn is gradient else [(found[k], expected[k]) for k in weights]
            for ours, theirs in pairs:
                assert float((ours - theirs).norm()) <= 2**-10 * float(theirs.norm())
            assert scale == 0 or not all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_pools_by_tiles_choose_as_torch_does(form: torch.memory_format) -> None:
    """Values, gradients and gradients of gradients, with ties (a blank image) among them; other pools stay."""
    import torch._inductor.lowering  # which the decompositions take for granted
    from torch._inductor.decomposition import decompositions

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Softplus(), nn.MaxPool2d((2, 3)), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Softplus(), nn.MaxPool2d(3, stride=1), nn.Flatten(), nn.Linear(5 * 1 * 2, 3),
    ).double()  # fmt: skip
    x = torch.rand(3, 1, 12, 24, dtype=torch.float64)
    x[1] = 0
    net, x = net.to(memory_format=form), x.contiguous(memory_format=form)

    def twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def once(x: Tensor) -> Tensor:
            return torch.func.grad(lambda v: net(v).exp().sum())(x)

        return net(x), once(x), torch.func.grad(lambda v: once(v).square().sum())(x)

    op = torch.ops.aten.max_pool2d_with_indices.default
    with torch.no_grad():
        traced = make_fx(twice, {op: decompositions[op]}, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
        pools = sum(str(n.target) == kernels.POOL for n in traced.graph.nodes)
        assert kernels.tiled_pools(traced.graph) == pools * 2 // 3 > 0
        traced.graph.eliminate_dead_code()
        traced.graph.lint()
        traced.recompile()
        left = [str(n.target) for n in traced.graph.nodes]
        assert left.count(kernels.POOL) == pools // 3
        assert left.count("aten.max_pool2d_with_indices_backward.default") == 3  # all of the overlapping pool
        assert left.count("aten.gather.default") == 1
        for ours, theirs in zip(traced(x), twice(x), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_step_op_by_op_is_the_plain_one() -> None:
    net = conv(nn.Softplus()).double()
    x, _, y = images()
    rho = MAKE["ig_norm"](1.0, 0.3)
    start = rho.within.start(x)
    fast = Step(net, compiled=True, backend=kernels.op_by_op())
    a, ours = step_of(fast, rho, x, y, start)
    b, theirs = step_of(Step(net), rho, x, y, start)
    assert not fast.notes
    torch.testing.assert_close(a.value, b.value, rtol=1e-9, atol=1e-10)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-8, atol=1e-9)


def test_an_ordinary_convolution_by_a_large_kernel_stays() -> None:
    x, w = torch.rand(2, 3, 7, 7), torch.rand(4, 3, 7, 7)
    both = make_fx(lambda x, w: (F.conv2d(x, w), F.conv2d(x, w[:, :, :2, :2], padding=1)), tracing_mode="fake")(x, w)
    assert kernels.kernel_gradients(both.graph) == 0


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU")
def test_real_kernels_on_a_cpu() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Softplus(), nn.Linear(16, 3))
    x, _, y = images()
    x = x.float()
    rho = objectives.ig_sum_norm(0.1, LinfBall(0.1), PGD(1, 0.05), m=2, m_attack=2)
    start = rho.within.start(x)
    fast = Step(net, compiled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the compiler's own imports
        a, ours = step_of(fast, rho, x, y, start)
    b, theirs = step_of(Step(net), rho, x, y, start)
    assert fast.seconds > 0
    torch.testing.assert_close(a.value, b.value, rtol=1e-4, atol=1e-5)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "rho", "words"),
    [
        (Residual, MAKE["ig_norm"](1.0, 0.3), "batch norm"),
        (
            NETS["relu"],
            objectives.wasserstein(objectives.shift(), 1.0, power(l2, 2) @ displacement, PGD(2, 0.1)),
            "Everywhere",
        ),
        (NETS["relu"], objectives.ig_norm(1.0, LinfBall(0.3), PGD(2, 0.1), m=3, m_attack=2, chunk=1), "chunks"),
    ],
)
def test_what_cannot_be_compiled_runs_eagerly_and_says_so(model, rho: Robust, words: str) -> None:
    net = model().double()
    x, _, y = images()
    start = rho.within.start(x)
    fast = Step(net, compiled=True, backend="aot_eager")
    state = {k: v.clone() for k, v in net.state_dict().items()}
    a, ours = step_of(fast, rho, x, y, start)
    net.load_state_dict(state)  # a batch-norm layer has moved its statistics
    b, theirs = step_of(Step(net), rho, x, y, start)
    assert words in fast.notes[0]
    torch.testing.assert_close(a.value, b.value)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q)


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


@pytest.mark.parametrize(
    "make", [Dropping, Counting, lambda: nn.Sequential(nn.Flatten(), nn.RReLU(), nn.Linear(64, 3))]
)
def test_a_model_that_answers_otherwise_in_training_mode_runs_eagerly(make) -> None:
    net = make().double().train()
    x, _, y = images()
    rho = MAKE["ig_norm"](1.0, 0.3)
    fast, before = Step(net, compiled=True, backend="aot_eager"), {k: v.clone() for k, v in net.state_dict().items()}
    x = x - 0.5 if isinstance(net, nn.Sequential) else x  # a random slope shows below 0 alone
    rho = replace(rho, within=replace(rho.within, bounds=None))
    assert restless(net, x)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())  # trying it leaves no trace
    state, start = torch.get_rng_state(), rho.within.start(x)
    torch.set_rng_state(state)
    a, ours = step_of(fast, rho, x, y, start)
    net.load_state_dict(before)
    torch.set_rng_state(state)
    b, theirs = step_of(Step(net), rho, x, y, start)
    assert fast.notes == ["the model answers otherwise in training mode: the step runs eagerly"]
    torch.testing.assert_close(a.value, b.value)
    torch.testing.assert_close(ours, theirs)
    assert not restless(net.eval(), x)
    still = Step(net, compiled=True, backend="aot_eager")
    step_of(still, rho, x, y, start)
    assert not still.notes
    net.train()
    step_of(still, rho, x, y, start)
    assert still.notes == fast.notes  # the mode is looked at again


class Breaks(nn.Module):
    """A forward pass that no compiler can trace whole."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return self.inner(x.flatten(1))


def test_a_model_that_does_not_compile_falls_back_with_one_warning() -> None:
    net = Breaks().double()
    x, _, y = images()
    rho = MAKE["madry"](1.0, 0.3)
    start = rho.within.start(x)
    fast = Step(net, compiled=True, backend="aot_eager")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        a, ours = step_of(fast, rho, x, y, start)
    for part in ("attack gradient", "gradient step"):  # one warning each, with the compiler's reason
        (why,) = [str(w.message) for w in seen if str(w.message).startswith(f"the {part} could not be compiled")]
        assert "graph_break" in why
    step_of(fast, rho, x, y, start)  # a second warning would be an error here
    b, theirs = step_of(Step(net), rho, x, y, start)
    torch.testing.assert_close(a.value, b.value)
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q)


def test_compiled_reports_its_time_and_keeps_its_result() -> None:
    twice = Compiled(lambda a: 2 * a, name="double", backend="aot_eager")
    assert twice(torch.tensor(3.0)) == 6.0
    assert twice.seconds > 0
    assert not twice.fell_back


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_stays_within_its_stated_error(device: str) -> None:
    """The attack's ‖IG‖₁ in bf16: within 3% of fp32 for the paper's CNN (docs/benchmarks.md measures it)."""
    net = paper_cnn().to(device)
    x, y = torch.rand(2, 1, 28, 28, device=device), torch.tensor([3, 7], device=device)
    rho = objectives.ig_norm(1.0, LinfBall(0.3), PGD(0, 0.0), m=2, m_attack=2)
    start = rho.within.start(x)
    values = {}
    for name in ("fp32", "bf16"):
        out, _ = step_of(Step(net, arithmetic=name), rho, x, y, start)
        values[name] = out.penalty.double()
    assert not torch.equal(values["fp32"], values["bf16"])
    torch.testing.assert_close(values["bf16"], values["fp32"], rtol=3e-2, atol=0.0)


@pytest.mark.parametrize("function", [OwnTanh, OldTanh])
def test_a_model_with_an_autograd_function_of_its_own_is_not_compiled(function: type[torch.autograd.Function]) -> None:
    net, name = conv(OwnActivation(function)).double(), function.__name__
    x, _, y = images()
    assert own_function(net, x) == name
    assert own_function(conv(nn.Tanh()).double(), x) == ""
    rho, start = MAKE["ig_norm"](1.0, 0.3), LinfBall(0.3).start(x)
    fast, plain = Step(net, compiled=True, backend="aot_eager"), Step(net)
    (a, ours), (b, theirs) = (step_of(step, rho, x, y, start) for step in (fast, plain))
    assert torch.equal(a.worst, b.worst)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0)
    assert fast.notes == [f"the model has an autograd.Function of its own ({name}): the step runs eagerly"]


@pytest.mark.parametrize("wrong", ["another number", "nan"])
def test_a_wrong_compiled_answer_is_not_taken(wrong: str) -> None:
    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Callable[..., Any]:
        spoil = 1.002 if wrong == "another number" else float("nan")
        return lambda *args: tuple(spoil * out if out.is_floating_point() else out for out in graph(*args))

    twice = Compiled(lambda a: {"double": 2 * a, "whole": (a.long(), 3 * a)}, name="double", backend=backend)
    a = torch.rand(5)
    with pytest.warns(
        UserWarning, match="WrongWhenCompiled: .* away from the eager one, where rounding explains 0.001"
    ):
        out = twice(a)
    assert twice.fell_back
    for answer in (out, twice(a)):
        assert torch.equal(answer["double"], 2 * a)


def test_where_the_plain_function_has_no_memory_the_compiled_one_is_taken() -> None:
    def twice(a: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            raise torch.OutOfMemoryError
        return 2 * a

    lean = Compiled(twice, name="double", backend="aot_eager")
    assert lean(torch.tensor(3.0)) == 6.0
    assert not lean.fell_back


def test_nan_where_the_plain_function_has_one_is_no_reason_to_fall_back() -> None:
    root = Compiled(lambda a: a.sqrt(), name="root", backend="aot_eager")
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


def test_cudnn_is_tuned_for_a_while_and_never_where_runs_must_repeat() -> None:
    before = torch.backends.cudnn.benchmark
    with tuned():
        assert torch.backends.cudnn.benchmark
        with deterministic(), tuned():
            assert not torch.backends.cudnn.benchmark
        assert torch.backends.cudnn.benchmark
    assert torch.backends.cudnn.benchmark == before

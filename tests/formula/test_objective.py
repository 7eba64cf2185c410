"""Robust and its parts: the user's short loop, what it leaves untouched, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nets import NETS, Residual, images, mlp
from robattr import (
    IG,
    PGD,
    Best,
    Change,
    Everywhere,
    IntegratedGradients,
    Joint,
    L1Ball,
    L2Ball,
    LinfBall,
    LpBall,
    Robust,
    at_layer,
    averaged,
    cross_entropy,
    displacement,
    l1,
    l2,
    logit,
    margin,
    midpoint,
    objectives,
    power,
    right,
    total,
)
from robattr.engine import Step
from robattr.engine.compiled import traced
from robattr.errors import InvalidInput, RobattrError, UnsupportedModel
from robattr.formula.ascent import grad_and_value, maximise
from robattr.formula.sizes import Size
from robattr.training.config import TrainConfig

BALL, BY = LinfBall(0.3), PGD(steps=3, step_size=0.1)
OBJECTIVES = {
    "natural": objectives.natural(),
    "madry": objectives.madry(BALL, BY),
    "ig_norm": objectives.ig_norm(1.0, BALL, BY, m=4, m_attack=2),
    "ig_norm at a layer": objectives.ig_norm(1.0, BALL, BY, m=4, m_attack=2, at=at_layer("stem")),
    "ig_sum_norm": objectives.ig_sum_norm(0.1, BALL, BY, m=4, m_attack=2),
    "ig_sum_norm in chunks": objectives.ig_sum_norm(0.1, BALL, BY, m=4, m_attack=2, chunk=1),
    "input_gradient": objectives.input_gradient(0.1, 2.0, L2Ball(0.5), BY),
    "loss_output": objectives.loss_output(BALL, BY),
    "wasserstein": objectives.wasserstein(objectives.spread(3), 2.0, power(l2, 2) @ displacement, BY),
    "distributional": objectives.distributional(objectives.spread(3), 0.1, power(l2, 2) @ displacement, BY),
}


def naive_ig(net: nn.Module, x: Tensor, x1: Tensor, y: Tensor, m: int) -> Tensor:
    """The reference's right Riemann sum of the cross-entropy, written as a plain double-backprop loop."""
    total_gradient = torch.zeros_like(x)
    for k in range(1, m + 1):
        z = x + (k / m) * (x1 - x)
        if not z.requires_grad:
            z.requires_grad_()
        loss = F.cross_entropy(net(z), y, reduction="sum")
        total_gradient = total_gradient + torch.autograd.grad(loss, z, create_graph=True)[0]
    return (x1 - x) * total_gradient / m


def test_ig_sum_norm_is_the_naive_port_of_the_reference() -> None:
    net = NETS["leaky"]().double()
    x, _, y = images()
    ball, beta = LinfBall(0.3), 0.1
    start = ball.start(x)
    rho = objectives.ig_sum_norm(beta, ball, PGD(steps=4, step_size=0.1), m=6, m_attack=3, rule=right)
    out = rho(net, x, y, start=start)
    ours = torch.autograd.grad(out.value.sum(), list(net.parameters()))

    z = start.clone()
    for _ in range(4):
        z.requires_grad_()
        value = F.cross_entropy(net(z), y, reduction="sum") + beta * naive_ig(net, x, z, y, 3).abs().sum()
        (g,) = torch.autograd.grad(value, z)
        z = torch.min(torch.max(z.detach() + 0.1 * g.sign(), x - 0.3), x + 0.3).clamp(0, 1)
    torch.testing.assert_close(out.worst, z)
    expected = F.cross_entropy(net(z), y, reduction="none") + beta * naive_ig(net, x, z, y, 6).abs().flatten(1).sum(1)
    torch.testing.assert_close(out.value, expected)
    theirs = torch.autograd.grad(expected.sum(), list(net.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_the_users_loop(name: str) -> None:
    """Five steps of plain PyTorch lower every objective."""
    net = Residual()
    x, _, y = images(12)
    x = x.float()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    values = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = OBJECTIVES[name](net, x, y).value.mean()
        loss.backward()
        optimiser.step()
        values.append(float(loss.detach()))
    assert values[-1] < values[0]


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_the_model_is_left_as_it_was(name: str) -> None:
    net = Residual()
    net.body.eval()  # a mixed state: flags are per module
    net.stem.weight.requires_grad_(False)
    x, _, y = images(4)
    flags = {n: m.training for n, m in net.named_modules()}
    wants = {n: p.requires_grad for n, p in net.named_parameters()}
    buffers = {n: b.clone() for n, b in net.named_buffers()}
    clean = Residual()
    clean.load_state_dict(net.state_dict())
    clean(x.float())  # the one pass whose statistics count
    OBJECTIVES[name](net, x.float(), y).value.mean().backward()
    assert flags == {n: m.training for n, m in net.named_modules()}
    assert wants == {n: p.requires_grad for n, p in net.named_parameters()}
    assert net.stem.weight.grad is None
    assert net.norm.num_batches_tracked == buffers["norm.num_batches_tracked"] + 1
    for n, b in clean.named_buffers():
        torch.testing.assert_close(dict(net.named_buffers())[n], b)


def test_an_evaluating_model_keeps_its_statistics() -> None:
    net = Residual().eval()
    x, _, y = images(4)
    before = {n: b.clone() for n, b in net.named_buffers()}
    OBJECTIVES["ig_sum_norm"](net, x.float(), y).value.mean().backward()
    for n, b in net.named_buffers():
        assert torch.equal(b, before[n])


@pytest.mark.parametrize("name", ["ig_norm", "ig_sum_norm in chunks"])
def test_batches_may_be_added_up_before_the_backward_pass(name: str) -> None:
    """Each clean pass moves the batch-norm statistics, in place, which the graphs before it have used."""
    net = Residual()
    x, _, y = images(8)
    x = x.float()
    starts = BALL.start(x).split(4)
    parts = list(zip(x.split(4), y.split(4), starts, strict=True))
    rho = OBJECTIVES[name]
    before = {n: b.clone() for n, b in net.named_buffers()}
    sum(rho(net, a, b, start=s).value.sum() for a, b, s in parts).backward()
    together = [p.grad.clone() for p in net.parameters()]
    for n, b in net.named_buffers():
        b.copy_(before[n])
    net.zero_grad()
    for a, b, s in parts:
        rho(net, a, b, start=s).value.sum().backward()
    for g, p in zip(together, net.parameters(), strict=True):
        torch.testing.assert_close(g, p.grad)


class Fails(nn.Module):
    """A network that fails at its fourth call, inside the attack."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.calls = nn.Linear(6, 3), nn.Dropout(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 4:
            raise RuntimeError("boom")
        return self.inner(self.drop(x))


def test_flags_are_restored_when_an_exception_passes_through() -> None:
    net = Fails()
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(UnsupportedModel, match="boom"):
        objectives.madry(BALL, BY)(net, torch.rand(2, 6), torch.tensor([0, 1]))
    assert all(m.training for m in net.modules())
    assert all(p.requires_grad for p in net.parameters())
    assert torch.backends.mha.get_fastpath_enabled() == fast


def test_the_max_does_not_touch_gradients_of_parameters() -> None:
    net = mlp()
    objectives.ig_norm(1.0, BALL, BY, m=4, m_attack=2)(net, torch.rand(2, 6), torch.tensor([0, 1]))
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize(
    "ball", [LinfBall(0.2), L2Ball(0.4), LpBall(0.4, 3.0), LpBall(0.005, 50.0), LinfBall(0.2, bounds=None)], ids=repr
)
def test_the_adversary_stays_in_the_neighbourhood_and_climbs(ball) -> None:
    net = NETS["softplus"]()
    x, _, y = images(6)
    x = x.float()
    value = objectives.spread(4)
    climb = grad_and_value(lambda z: value(net.requires_grad_(False), x, z, y))
    start = ball.start(x)
    path = [start, *PGD(steps=12, step_size=0.05).iterates(climb, x, ball, start=start)]
    assert len(path) == 13
    p = getattr(ball, "p", float("inf"))
    for z in path:
        step = (z - x).double().flatten(1)  # |step|^50 leaves float32
        assert float(torch.linalg.vector_norm(step, p, dim=1).max()) <= ball.radius * (1 + 1e-4)
        if ball.bounds:
            assert float(z.min()) >= 0.0
            assert float(z.max()) <= 1.0
    assert bool((value(net, x, path[-1], y) > value(net, x, path[0], y)).all())


def test_the_projection_on_ball_and_bounds_is_the_nearest_point() -> None:
    """Against Dykstra's alternating projections in float64.

    The largest s with ‖clip(x + s·(z − x)) − x‖ ≤ ε is known to the rounding of that norm, a few u·ε, and the norm
    grows with s by at least a tenth of |z − x| here: the point is off by at most 100 u |z − x|.
    """
    ball, generator = L2Ball(0.5), torch.Generator().manual_seed(0)
    x = torch.rand(6, 5, generator=generator).round(decimals=1)  # some of them at a bound
    z = x + 2 * torch.randn(6, 5, generator=generator)
    z[0] = x[0] + 0.01  # as good as inside
    nearest, far = dykstra(z.double(), x.double(), 0.5), float((z - x).norm(dim=1).max())
    torch.testing.assert_close(ball.project(z, x).double(), nearest, rtol=0.0, atol=100 * 2.0**-24 * far)


def dykstra(z: Tensor, x: Tensor, radius: float) -> Tensor:
    """The nearest point of {‖w − x‖₂ ≤ radius} ∩ [0, 1]ⁿ."""
    w, p, q = z, torch.zeros_like(z), torch.zeros_like(z)
    for _ in range(20_000):
        boxed = (w + p).clamp(0, 1)
        p = w + p - boxed
        step = boxed + q - x
        w = x + step * (radius / step.norm(dim=1, keepdim=True)).clamp_max(1.0)
        q = boxed + q - w
    return w


def test_an_attack_in_l2_reaches_the_maximum_where_pixels_lie_at_a_bound() -> None:
    """max ⟨w, δ⟩ over δ ≥ 0, ‖δ‖₂ ≤ 1 is ‖w₊‖₂; half of the pixels of a black image can only stay."""
    w = torch.randn(1, 100, generator=torch.Generator().manual_seed(1))
    found = maximise(PGD(steps=40, step_size=2.0), lambda z: (z * w).sum(1), torch.zeros(1, 100), L2Ball(1.0))
    assert float((found * w).sum()) == pytest.approx(float(w.clamp_min(0).norm()), rel=1e-3)


def test_the_norm_is_flat_at_the_clean_point_so_the_start_is_not_there() -> None:
    net = NETS["softplus"]()
    x, _, y = images(2)
    x = x.float()
    rho = objectives.ig_norm(1.0, BALL, BY, m=4, m_attack=4)
    assert torch.equal(rho(net, x, y, start=x).worst, x)
    assert float((rho(net, x, y).worst - x).abs().max()) > 0.1


def test_changes_form_a_linear_space() -> None:
    net = mlp().double()
    x, x1 = torch.rand(3, 6, dtype=torch.float64), torch.rand(3, 6, dtype=torch.float64)
    y = torch.arange(3)
    a, b = total @ IG(), l1 @ IG(of=logit)
    at = (net, x, x1, y)
    torch.testing.assert_close((2 * a - b * 0.5 + -a)(*at), 2 * a(*at) - 0.5 * b(*at) - a(*at))
    assert Change()(*at).tolist() == [0.0, 0.0, 0.0]
    assert hash(a) == hash(total @ IG())
    with pytest.raises(InvalidInput, match="another change"):
        a + 1.0  # type: ignore[operator]


def test_margin_is_positive_exactly_where_the_prediction_is_wrong() -> None:
    net, x, y = mlp(), torch.randn(50, 6), torch.arange(50) % 3
    assert torch.equal(margin(net, x, y) > 0, net(x).argmax(1) != y)


GOOD = (torch.rand(2, 6), torch.tensor([0, 2]))
MISTAKES = {
    "label out of range": (lambda: mlp(), GOOD[0], torch.tensor([0, 3]), InvalidInput, "0..2"),
    "negative label": (lambda: mlp(), GOOD[0], torch.tensor([-1, 0]), InvalidInput, "0..2"),
    "float labels": (lambda: mlp(), GOOD[0], torch.tensor([0.0, 1.0]), InvalidInput, "integer class labels"),
    "one-hot labels": (lambda: mlp(), GOOD[0], torch.eye(3)[:2].long(), InvalidInput, "one per example"),
    "integer input": (lambda: mlp(), torch.ones(2, 6).long(), GOOD[1], InvalidInput, "floating-point"),
    "no batch": (lambda: mlp(), torch.rand(6), torch.tensor(0), InvalidInput, "batch dimension"),
    "nan": (lambda: mlp(), torch.full((2, 6), float("nan")), GOOD[1], InvalidInput, "NaN or infinite"),
    "infinite": (lambda: mlp(), torch.full((2, 6), float("inf")), GOOD[1], InvalidInput, "NaN or infinite"),
    "outside the bounds": (lambda: mlp(), 255 * torch.ones(2, 6), GOOD[1], InvalidInput, "within the bounds"),
    "not logits": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Flatten(0)), *GOOD, UnsupportedModel, r"\(B, classes\)"),
    "not a tensor": (lambda: nn.LSTM(6, 3), *GOOD, UnsupportedModel, r"\(B, classes\)"),
    "compiled": (lambda: torch.compile(mlp()), *GOOD, UnsupportedModel, "torch.compile"),
    "compiled in place": (lambda: compiled_in_place(), *GOOD, UnsupportedModel, "torch.compile"),
    "compiled layer": (lambda: nn.Sequential(torch.compile(mlp())), *GOOD, UnsupportedModel, "layer '0'"),
    "compiled function": (lambda: torch.compile(lambda x: x[:, :3]), *GOOD, UnsupportedModel, "torch.compile"),
    "torch script": (lambda: torch.jit.trace(mlp(), GOOD[0]), *GOOD, UnsupportedModel, "TorchScript"),
    "other dtype": (lambda: mlp(), GOOD[0].double(), GOOD[1], InvalidInput, "float64 on cpu and torch.float32"),
    "other device": (lambda: mlp(), GOOD[0], GOOD[1].to("meta"), InvalidInput, "one device"),
    "data parallel": (lambda: nn.DataParallel(mlp()), *GOOD, UnsupportedModel, "model.module"),
    "batch statistics": (
        lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)),
        *GOOD,
        UnsupportedModel,
        "layer '1' is a batch norm without running statistics",
    ),
    "sync batch norm": (lambda: nn.Sequential(nn.Linear(6, 3), nn.SyncBatchNorm(3)), *GOOD, UnsupportedModel, "Sync"),
    "half": (lambda: mlp().half(), *GOOD, UnsupportedModel, "model.float"),
    "bfloat16": (lambda: mlp().bfloat16(), *GOOD, UnsupportedModel, "model.float"),
    "complex": (lambda: mlp().to(torch.complex64), *GOOD, UnsupportedModel, "real parameters"),
    "no model": (lambda: 3, *GOOD, UnsupportedModel, "nn.Module"),
}


def compiled_in_place() -> nn.Module:
    net = mlp()
    net.compile()
    return net


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_mistake_is_explained_and_the_model_untouched(name: str) -> None:
    build, x, y, error, words = MISTAKES[name]
    model = build()
    state = {k: v.clone() for k, v in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    for call in (OBJECTIVES["ig_sum_norm"], OBJECTIVES["natural"]):
        if name == "outside the bounds" and call is OBJECTIVES["natural"]:
            continue  # it has no neighbourhood
        with pytest.raises(error, match=words) as caught:
            call(model, x, y)
        assert isinstance(caught.value, RobattrError)
    if isinstance(model, nn.Module):
        assert all(m.training for m in model.modules())
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_two_points_that_do_not_match() -> None:
    with pytest.raises(InvalidInput, match="one shape"):
        IG()(mlp(), torch.rand(2, 6), torch.rand(3, 6), torch.tensor([0, 1]))
    with pytest.raises(InvalidInput, match="x and x' of one dtype"):
        IG()(mlp(), torch.rand(2, 6), torch.rand(2, 6).double(), torch.tensor([0, 1]))


class Blind(nn.Module):
    """A network that hides from autograd what it does with its input."""

    def __init__(self, hide: str) -> None:
        super().__init__()
        self.inner, self.hide = mlp(), hide

    def forward(self, x: Tensor) -> Tensor:
        if self.hide == "detach":
            return self.inner(x.detach())
        with torch.no_grad():
            return self.inner(x)


@pytest.mark.parametrize("hide", ["detach", "no_grad", "inference_mode"])
def test_what_cannot_be_differentiated_is_refused_and_not_called_zero(hide: str) -> None:
    net = mlp() if hide == "inference_mode" else Blind(hide)
    x, y = GOOD
    calls = (
        lambda: IG()(net, x, 1 - x, y),
        lambda: IG(rule=midpoint(4), chunk=2)(net, x, 1 - x, y),
        lambda: objectives.madry(BALL, BY)(net, x, y),
        lambda: IntegratedGradients(net).attribute(x, target=y),
    )
    for call in calls:
        with torch.inference_mode(hide == "inference_mode"), pytest.raises(UnsupportedModel, match="inference_mode"):
            call()


def test_bounds_may_be_open_on_one_side_and_come_as_a_list() -> None:
    x, y = GOOD
    half = LinfBall(0.1, bounds=(0.0, float("inf")))
    assert torch.isfinite(objectives.madry(half, BY)(mlp(), 5 + x, y).value).all()
    with pytest.raises(InvalidInput, match="within the bounds"):
        objectives.madry(half, BY)(mlp(), x - 5, y)
    assert LinfBall(0.1, bounds=[0.0, 1.0]) == LinfBall(0.1)
    assert len({LinfBall(0.1, bounds=[0.0, 1.0]), LinfBall(0.1)}) == 1


def test_a_scalar_that_mixes_examples_is_refused() -> None:
    x, y = GOOD
    with pytest.raises(InvalidInput, match="one number per example"):
        IG(of=lambda model, x, y: F.cross_entropy(model(x), y))(mlp(), x, 1 - x, y)  # the mean over the batch


class NoBounds:
    """A neighbourhood of the user's own that is not finished."""

    def start(self, x: Tensor, rand=torch.rand_like) -> Tensor:
        return x

    def project(self, z: Tensor, x: Tensor) -> Tensor:
        return x


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Robust(loss=mean_loss), "mean_loss"),
        (lambda: objectives.natural(loss=mean_loss), "mean_loss"),
        (lambda: Robust(Size(lambda a: a.abs().mean(), "mean") @ IG(rule=midpoint(2)), BALL, BY), "mean"),
        (lambda: Robust(Change(((1.0, mean_change),)), BALL, BY), "mean_change"),
        (lambda: Robust(objectives.shift(mean_loss), BALL, BY), "mean_loss"),
        (lambda: Robust(l1 @ IG(of=mean_loss, rule=midpoint(2)), BALL, BY), "the value"),
    ],
)
def test_a_loss_a_size_or_a_term_that_averages_over_the_batch_is_refused(build, name: str) -> None:
    """It would count B times in Σ ρ."""
    x, y = GOOD
    words = rf"one number per example from {name}, shape \(\d,\), got \(\): do not average"
    with pytest.raises(InvalidInput, match=words):
        build()(mlp(), x, y)


def mean_change(model: nn.Module, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
    return (x1 - x).abs().mean()


def test_numbers_of_numpy_are_numbers() -> None:
    assert midpoint(np.int64(4)) == midpoint(4)
    x, y = GOOD
    rho = objectives.ig_norm(np.float32(0.5), LinfBall(np.float64(0.1)), PGD(np.int32(2), np.float32(0.05)), m=2)
    assert bool(rho(mlp(), x, y).value.isfinite().all())


@pytest.mark.parametrize(
    ("name", "hint"), [("heed", "did you mean 'head'"), ("stm", "stem"), ("", "valid"), ("zzzzzzz", "valid: body")]
)
def test_an_unknown_layer_is_answered_with_near_names(name: str, hint: str) -> None:
    x, x1, y = images()
    with pytest.raises(InvalidInput, match=hint):
        IG(at=at_layer(name))(Residual().double(), x, x1, y)


def test_a_layer_of_a_plain_function_or_one_that_runs_twice() -> None:
    x = torch.rand(2, 6)
    with pytest.raises(UnsupportedModel, match="plain callable"):
        IG(at=at_layer("0"))(lambda z: z, x, x, torch.tensor([0, 1]))

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.again = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.again(x))

    with pytest.raises(UnsupportedModel, match="ran 2 times"):
        IG(at=at_layer("again"))(Twice(), x, x, torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LinfBall(-0.1), "radius"),
        (lambda: L2Ball(-1.0), "radius"),
        (lambda: LinfBall(float("nan")), "radius"),
        (lambda: LinfBall(0.1, bounds=(1.0, 0.0)), "low < high"),
        (lambda: LpBall(0.1, 1.0), "1 < p"),
        (lambda: Everywhere(nearby=-1.0), "radius"),
        (lambda: LinfBall("0.1"), "radius"),
        (lambda: LinfBall(0.1, bounds=1.0), "low, high"),
        (lambda: PGD(3, "0.1"), "step size"),
        (lambda: objectives.madry(0.3, BY), "LinfBall"),
        (lambda: objectives.madry(NoBounds(), BY), "without bounds, direction"),
        (lambda: IG(along=lambda x, x1, t: x + t * (x1 - x)), "a path with a derivative"),
        (lambda: objectives.madry(BALL, 40), "PGD"),
        (lambda: PGD(-1, 0.1), "steps"),
        (lambda: PGD(3, -0.1), "step size"),
        (lambda: TrainConfig(method="distributional-ig", gamma=0.0), "gamma must be positive"),
        (lambda: replace(OBJECTIVES["distributional"], gamma=torch.tensor(0.0)), "γ > 0"),
        (lambda: objectives.ig_norm(1.0, BALL, BY, m=0), "m ≥ 1"),
        (lambda: objectives.ig_norm(-1.0, BALL, BY), "λ ≥ 0"),
        (lambda: objectives.ig_norm(float("nan"), BALL, BY), "λ ≥ 0"),
        (lambda: objectives.ig_sum_norm(-0.1, BALL, BY), "β ≥ 0"),
        (lambda: objectives.ig_sum_norm(0.1, BALL, BY, m_attack=-2), "m ≥ 1"),
        (lambda: objectives.input_gradient(0.1, 0.5, BALL, BY), "q ≥ 1"),
        (lambda: objectives.input_gradient(0.1, float("inf"), BALL, BY), "q ≥ 1"),
        (lambda: objectives.input_gradient(0.1, 1.0, LinfBall(0.0), BY), "positive radius"),
        (lambda: objectives.input_gradient(0.1, 1.0, Everywhere(), BY), "positive radius"),
        (lambda: objectives.wasserstein(Change(), -1.0, Change(), BY), "γ ≥ 0"),
        (lambda: objectives.distributional(Change(), 0.0, Change(), BY), "budget"),
        (lambda: objectives.distributional(Change(), 1.0, Change(), BY, weight=-1.0), "λ ≥ 0"),
        (lambda: objectives.distributional(Change(), 1.0, Change(), BY, rate=float("nan")), "rate"),
        (lambda: IG(rule=10), "rule"),
        (lambda: IG(at="conv1"), r"at_layer\('conv1'\) as `at`, got 'conv1'"),
        (lambda: IG(of="logit"), "as `of`"),
        (lambda: IG(along="straight"), "as `along`"),
        (lambda: objectives.ig_norm(1.0, BALL, BY, rule=midpoint(3)), "family of rules such as midpoint"),
        (lambda: IG(chunk=True), "chunk"),
        (lambda: IG(rule=midpoint(3), chunk=0), "chunk"),
        (lambda: power(l1, 0.0), "q > 0"),
        (lambda: float("nan") * (l1 @ IG()), "finite"),
    ],
)
def test_a_formula_that_makes_no_sense_is_refused_when_written(build, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        build()


def test_a_plain_function_is_a_model_too() -> None:
    w = torch.randn(6, 3, requires_grad=True)
    rho = Robust(change=l1 @ IG(rule=midpoint(3), chunk=2), within=BALL, by=BY, loss=cross_entropy)
    rho(lambda x: torch.tanh(x @ w), torch.rand(2, 6), torch.tensor([0, 1])).value.mean().backward()
    assert w.grad is not None
    assert float(w.grad.norm()) > 0


# Several adversaries in one objective

FREE = LinfBall(0.3, bounds=None)


def joint_batch() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(2)
    return mlp().double(), torch.rand(4, 6, dtype=torch.float64), torch.arange(4) % 3


def test_a_sum_has_one_clean_loss_and_every_penalty() -> None:
    net, x, y = joint_batch()
    a = objectives.trades(2.0, FREE, BY)
    b = objectives.aat(0.5, L1Ball(0.4, bounds=None), Best(BY))
    rho = sum([a, b])
    starts = rho.start(x)
    out, first, second = rho(net, x, y, start=starts), a(net, x, y, start=starts[0]), b(net, x, y, start=starts[1])
    torch.testing.assert_close(out.value, first.loss + 2.0 * first.penalty + 0.5 * second.penalty)
    torch.testing.assert_close(out.loss, cross_entropy(net, x, y))
    torch.testing.assert_close(out.worst, first.worst)
    assert (a + b + a).terms == (a, b, a)
    assert a + (b + a) == a + b + a


@pytest.mark.parametrize("compiled", [False, True])
def test_the_engine_runs_a_sum(compiled: bool) -> None:
    net, x, y = joint_batch()
    rho = objectives.trades(2.0, FREE, BY) + objectives.igr(0.5, LinfBall(0.1), BY)
    starts = rho.start(x)
    expected = rho(net, x, y, start=starts)
    gradients = torch.autograd.grad(expected.value.sum(), list(net.parameters()))
    step = Step(net, compiled=compiled, backend=traced)
    out = step(rho, x, y, start=starts)
    torch.testing.assert_close(out.value, expected.value)
    torch.testing.assert_close([p.grad for p in net.parameters()], list(gradients))
    assert not step.notes
    with torch.random.fork_rng():  # without a start, each term draws one of its own
        torch.manual_seed(0)
        drawn = step(averaged(objectives.lga(0.3, 0.2, FREE), 2), x, y).value
        torch.manual_seed(0)
        starts = torch.stack([FREE.start(x), FREE.start(x)])
    torch.testing.assert_close(drawn, averaged(objectives.lga(0.3, 0.2, FREE), 2)(net, x, y, start=starts).value)


def test_inputs_outside_the_bounds_of_any_term_are_refused() -> None:
    net, x, y = joint_batch()
    rho = objectives.madry(LinfBall(0.1, (0.0, 9.0)), BY) + objectives.madry(LinfBall(0.1, (0.0, 1.0)), BY)
    with pytest.raises(InvalidInput, match="within the bounds"):
        rho(net, 5 * x, y)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: objectives.natural() + 1, "another one, such as madry"),
        (lambda: 1 + objectives.natural(), "another one, such as madry"),
        (lambda: objectives.natural() + objectives.natural(loss=margin), "one clean loss"),
        (lambda: Joint(()), "expects objectives"),
        (lambda: averaged(objectives.natural(), 0), "draws ≥ 1"),
        (lambda: objectives.ssr(1.0), "α < 1"),
        (lambda: objectives.igr(-1.0, FREE, BY), "λ ≥ 0"),
        (lambda: objectives.art(float("nan"), FREE, BY), "λ ≥ 0"),
        (lambda: objectives.r2et(0.1, k=0), "k ≥ 1"),
    ],
)
def test_mistakes_of_sums_and_named_objectives(wrong, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wrong()

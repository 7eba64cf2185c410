"""The attribution attack against a naive reference: one example at a time, autograd and SciPy."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from functools import partial
from math import inf

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn
from torch.nn import functional as F

from nets import OldTanh, OwnActivation, OwnTanh, conv, images
from robattr.attacks import (
    IFIA,
    AttributionMap,
    PGDAttack,
    from_callable,
    gradient_input,
    integrated_gradients,
    passes,
    simple_gradient,
    smooth_grad,
)
from robattr.attacks.losses import loss_reference
from robattr.attacks.result import Rows
from robattr.engine import Compiled, in_use
from robattr.engine.compiled import traced
from robattr.errors import InvalidInput
from robattr.evaluation.protocol import LOSSES
from robattr.formula.attribution import IG
from robattr.formula.change import displacement
from robattr.formula.neighbourhoods import LinfBall
from robattr.formula.network import Model, second_order
from robattr.formula.quadrature import midpoint
from robattr.formula.sizes import l2, power
from robattr.metrics import kendall, mass_center_displacement, topk_intersection
from robattr.models import resnet

N, K, EPS, ALPHA, STEPS = 5, 9, 0.1, 0.02, 8
BOTH = {"kendall": kendall, "topk": partial(topk_intersection, k=K)}
SCREENED = replace(integrated_gradients(3), coarse=simple_gradient())


class Net(nn.Module):
    """Two layers whose activation is an argument, so that the reference below needs no twin of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, F.relu)

    def run(self, x: Tensor, act) -> Tensor:
        return self.fc(act(self.conv(x)).flatten(1))


@pytest.fixture(scope="module")
def case() -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(3)
    net = Net().double()
    with torch.no_grad():
        net.conv.weight.mul_(3)
    x = torch.rand(4, 1, 6, 6, dtype=torch.float64)
    x[:, :, :2] = 0  # black pixels: exact ties of the IG map
    return net, x, net(x).argmax(dim=1).detach()


def rows_of(attack: IFIA, x: Tensor, y: Tensor, *, restart: int = 0) -> Rows:
    """One restart of every example."""
    return Rows(x, y, *attack.map_and_label(x, y), names=[(b, restart) for b in range(len(x))])


def naive_map(name: str, net: Net, x: Tensor, y: int, act) -> Tensor:
    """The reference's map of one image, with a graph."""
    points = [1.0] if name == "sg" else [i / N for i in range(1, N + 1)]
    total = torch.zeros_like(x)
    for t in points:
        z = t * x if x.requires_grad else (t * x).requires_grad_()
        (g,) = torch.autograd.grad(net.run(z[None], act)[0, y], z, create_graph=True)
        total = total + g / len(points)
    s = (total if name == "sg" else total * x).abs().sum(0)
    return s * s.numel() / s.sum()


def naive_step(name: str, net: Net, x: Tensor, y: int, clean: Tensor, z: Tensor | None = None) -> Tensor:
    """One step from z (or x) away from the k largest pixels of the clean map, along the softplus net."""
    z = x if z is None else z
    mask = torch.zeros(clean.numel(), dtype=torch.bool)
    mask[(-clean.flatten()).argsort(stable=True)[:K]] = True
    v = z.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(naive_map(name, net, v, y, F.softplus).flatten()[mask].sum(), v)
    return (x + (z - ALPHA * g.sign() - x).clamp(-EPS, EPS)).clamp(0, 1).detach()


def naive_attack(name: str, net: Net, x: Tensor, y: int, start: Tensor) -> tuple[list[Tensor], list[float], Tensor]:
    """Iterates, best Kendall so far, and the point it belongs to: the loop of the reference, literally."""
    clean = naive_map(name, net, x, y, F.relu).detach()
    z, best, kept, iterates, history = start, 1.0, x, [], []
    for _ in range(STEPS):
        z = naive_step(name, net, x, y, clean, z)
        iterates.append(z)
        if int(net(z[None]).argmax()) == y:
            tau = kendalltau(clean.numpy(), naive_map(name, net, z, y, F.relu).detach().numpy()).statistic
            if tau < best:
                best, kept = tau, z
        history.append(best)
    return iterates, history, kept


@pytest.mark.parametrize("map", [integrated_gradients(N), simple_gradient()], ids=lambda m: m.name)
def test_equals_the_naive_reference(case, map: AttributionMap) -> None:
    net, x, y = (each[:2] if isinstance(each, Tensor) else each for each in case)
    attack = IFIA(net, EPS, ALPHA, STEPS, k=K, restarts=2, map=map, seed=5)
    found = attack(x, y)
    walks = {}
    for b in range(len(x)):
        for r in range(2):
            start = attack.starts(x[b : b + 1], [(b, r)])[0]
            walks[b, r] = naive_attack(map.name, net, x[b], int(y[b]), start)
        best = min(range(2), key=lambda r: walks[b, r][1][-1])
        assert found.score[b].item() == pytest.approx(walks[b, best][1][-1], abs=1e-12)
        torch.testing.assert_close(found.perturbed[b], walks[b, best][2], rtol=0, atol=1e-12)
        history = [min(walks[b, r][1][t] for r in range(2)) for t in range(STEPS)]
        assert found.history["kendall"][b].tolist() == pytest.approx(history, abs=1e-12)
    walk = attack.iterates(rows_of(attack, x, y, restart=1))
    for t, step in enumerate(walk):
        expected = torch.stack([walks[b, 1][0][t] for b in range(len(x))])
        torch.testing.assert_close(step.x, expected, rtol=0, atol=1e-12)
    assert found.score.max() < 0.9, "the attack must have done something"


def test_restarts_begin_at_x_and_one_step_away(case) -> None:
    net, x, _ = case
    attack = IFIA(net, EPS, ALPHA, STEPS, restarts=3, seed=1)
    first = attack.starts(x, [(i, 0) for i in range(len(x))])
    other = attack.starts(x, [(i, 1) for i in range(len(x))])
    assert torch.equal(first, x)
    moved = (other - x).abs()
    assert 0 < moved.max() <= ALPHA + 1e-12
    assert not torch.equal(other, attack.starts(x, [(i, 2) for i in range(len(x))]))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "topk"},
        {"kind": "topk", "adaptive": True, "keep": 0.1, "start": "ball"},
        {"kind": "topk", "beta": 10.0},
        {"kind": "topk", "beta": inf},
        {"kind": "mass_center"},
        {"kind": "target", "target": torch.eye(6)},
        {"kind": "random", "alpha": 0.5},
    ],
    ids=lambda c: "-".join(str(v) for v in c.values() if not isinstance(v, Tensor)),
)
def test_stays_in_the_ball_and_never_counts_a_flipped_label(case, change) -> None:
    net, x, y = case
    attack = replace(IFIA(net, 0.6, 0.15, STEPS, k=K, restarts=2, map=integrated_gradients(N)), **change)
    found = attack(x, y)
    assert (found.perturbed - x).abs().max() <= 0.6 + 1e-12
    assert found.perturbed.min() >= 0
    assert found.perturbed.max() <= 1
    better = found.iterate > 0
    assert torch.equal(net(found.perturbed).argmax(dim=1), y), "kept points, and x itself, keep the label"
    assert torch.equal(found.score[~better], torch.ones_like(found.score[~better]))
    torch.testing.assert_close(found.map, attack.map(net, found.perturbed, y).detach())
    assert ((found.flips >= 0) & (found.flips <= 1)).all()


def test_a_label_that_is_never_kept_is_no_success() -> None:
    """The first pixel decides the label and every step moves it across."""

    class Brittle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            own = (torch.arange(1.0, 10.0) * x.flatten(1) ** 2).sum(dim=1)
            return torch.stack([own, own + 50 * ((x - 0.5).flatten(1) ** 2).sum(dim=1) - 1e-6], dim=1)

    x = torch.full((1, 1, 3, 3), 0.5)
    found = IFIA(Brittle(), 0.2, 0.1, 3, k=3, map=simple_gradient(), restarts=2)(x, torch.tensor([0]))
    assert not found.kept.any()
    assert found.flips.item() == 1
    assert found.score.item() == 1
    assert torch.equal(found.perturbed, x)


def test_a_linear_model_is_exactly_robust() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    x = torch.rand(4, 1, 6, 6, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    found = IFIA(net, 0.3, 0.05, 6, k=K, map=simple_gradient(), restarts=2)(x, y)
    assert torch.equal(found.score, torch.ones(4, dtype=torch.float64))
    assert found.vanished.eq(1).all(), "a constant map gives no direction, and that is reported"


def test_an_attack_leaves_an_image_whose_top_pixels_carry_all() -> None:
    """J is at its maximum, and its gradient exactly 0: the first step of the restart from x has signs of its own."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2, bias=False))
    nn.init.zeros_(net[1].weight)
    net[1].weight.data[0] = 0.5
    x = torch.zeros(3, 1, 6, 6)
    x[:, :, 2, 1:3] = 1.0
    attack = IFIA(net, 0.3, 0.05, 6, k=4, map=integrated_gradients(4), restarts=1)
    found = attack(x, torch.zeros(3).long(), ids=[5, 9, 5])
    assert found.vanished.eq(1).all()
    assert (found.score < 1).all()
    assert torch.equal(found.perturbed[0], found.perturbed[2]), "signs depend on the id alone"
    assert not torch.equal(found.perturbed[0], found.perturbed[1])


class Fragile(nn.Module):
    """logit_0 = Σ relu(40 (x − ½)): a pixel is attributed only above ½, which the images below straddle by 0.01."""

    def forward(self, x: Tensor) -> Tensor:
        own = F.relu(40 * (x - 0.5)).flatten(1).sum(dim=1) + 100
        return torch.stack([own, torch.zeros_like(own)], dim=1)


@pytest.mark.parametrize("kind", ["topk", "soft_topk", "rank", "kendall", "cosine", "mass_center", "score", "random"])
def test_an_example_without_a_map_has_no_score(case, kind: str) -> None:
    net, x, _ = case
    x = x.clone()
    x[1] = 0  # the IG map from black to black is 0 / 0
    x[2, 0, 3, 3] = torch.nan
    label = net(x).argmax(dim=1)
    attack = IFIA(net, EPS, ALPHA, STEPS, k=K, restarts=2, map=integrated_gradients(N), kind=kind)
    found = attack(x, label)
    blank = torch.tensor([False, True, True, False])
    assert torch.equal(found.score.isnan(), blank)
    assert torch.equal(found.worst["kendall"].isnan(), blank)
    assert not found.kept[blank].any()
    alone = attack(x[:1], label[:1])
    torch.testing.assert_close(
        found.score[:1], alone.score, rtol=0, atol=1e-9, msg="the others are scored as without it"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps of at least 1"),
        ({"restarts": 0}, "restarts"),
        ({"alpha": -0.1}, "alpha of at least 0"),
        ({"seed": -1}, "seed of at least 0"),
    ],
)
@pytest.mark.parametrize("made", [partial(IFIA, k=K, map=integrated_gradients(N)), PGDAttack])
def test_an_attack_that_would_not_attack_is_refused(case, made, change, words) -> None:
    net, x, y = case
    attack = made(net, EPS, ALPHA, STEPS)
    with pytest.raises(InvalidInput, match=words):
        replace(attack, **change)(x, y)
    with pytest.raises(InvalidInput, match="at least one example"):
        attack(x[:0], y[:0])
    with pytest.raises(InvalidInput, match=r"labels of shape \(4,\), one per example, got \(1,\)"):
        attack(x, y[:1])
    with pytest.raises(InvalidInput, match="expected 4 ids, one per example"):
        attack(x, y, ids=[7])
    with pytest.raises(InvalidInput, match=r"within the bounds \(0, 1\)"):
        attack(255 * x, y)
    found = attack(x.clone().requires_grad_(), y)
    assert not getattr(found, "perturbed", found).requires_grad


def test_a_fragile_model_is_found_fragile() -> None:
    x = torch.full((1, 1, 6, 6), 0.49, dtype=torch.float64)
    x[..., ::2] = 0.51
    y = torch.tensor([0])
    found = IFIA(Fragile(), 0.05, 0.01, 10, k=18, map=simple_gradient())(x, y)
    noise = IFIA(Fragile(), 0.005, 0.005, 10, k=18, map=simple_gradient(), kind="random")(x, y)
    assert found.kept.all()
    assert found.score.item() < 0
    assert noise.score.item() == 1, "noise too small to cross ½ changes nothing"


def test_labels_of_a_small_integer_type_do_not_limit_the_number_of_steps(case) -> None:
    net, x, y = case
    attack = IFIA(net, EPS, EPS, 140, kind="random", map=simple_gradient())
    wide, narrow = attack(x, y), attack(x, y.to(torch.int8))
    assert torch.equal(narrow.perturbed, wide.perturbed)
    assert torch.equal(narrow.iterate, wide.iterate)


def test_results_do_not_depend_on_the_batch(case) -> None:
    net, x, y = case
    attack = IFIA(net, EPS, ALPHA, 4, k=K, restarts=2, map=integrated_gradients(N), start="ball")
    whole = attack(x, y, ids=[10, 11, 12, 13])
    part = attack(x[[2, 0]], y[[2, 0]], ids=[12, 10])
    torch.testing.assert_close(part.perturbed, whole.perturbed[[2, 0]], rtol=0, atol=1e-12)
    torch.testing.assert_close(part.score, whole.score[[2, 0]], rtol=0, atol=1e-12)
    assert not torch.equal(attack(x, y, ids=[0, 1, 2, 3]).perturbed, whole.perturbed), "ids seed the starts"


def test_the_shortcut_of_standardising_nets_equals_the_sum() -> None:
    torch.manual_seed(1)
    net = resnet(4, 1, channels=1).double()
    x = 255 * torch.rand(3, 1, 8, 8, dtype=torch.float64)
    x[2] = 100 + 0.1 * torch.rand(1, 8, 8, dtype=torch.float64)  # so flat that the floor of σ is active near black
    y = net(x).argmax(dim=1)
    by_sum = replace(integrated_gradients(8), along_ray=None)
    attack = IFIA(net, 8.0, 1.0, 3, k=10, bounds=(0.0, 255.0), map=integrated_gradients(8), restarts=2)
    assert attack.can_shorten(x).tolist() == [True, True, False]
    short, long = attack(x, y), replace(attack, map=by_sum)(x, y)
    torch.testing.assert_close(short.perturbed, long.perturbed, rtol=0, atol=1e-9)
    torch.testing.assert_close(short.score, long.score, rtol=0, atol=1e-9)
    torch.testing.assert_close(short.map, long.map, rtol=1e-6, atol=1e-9)


def test_images_with_and_without_the_shortcut_in_one_batch() -> None:
    """The one kind has every iterate scored, the other one of a window."""
    torch.manual_seed(1)
    net = resnet(4, 1, channels=1).double()
    x = 255 * torch.rand(3, 1, 8, 8, dtype=torch.float64)
    x[1] = 100 + 0.1 * torch.rand(1, 8, 8, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    attack = IFIA(net, 8.0, 1.0, 7, k=10, bounds=(0.0, 255.0), map=integrated_gradients(20), restarts=2, window=3)
    assert attack.can_shorten(x).tolist() == [True, False, True]
    together = attack(x, y, ids=[0, 1, 2])
    assert together.history["kendall"].shape[1] == 7
    for b in range(3):
        alone = attack(x[b : b + 1], y[b : b + 1], ids=[b])
        torch.testing.assert_close(together.score[b : b + 1], alone.score, rtol=0, atol=1e-9)
        lowest = (h.history["kendall"][at].min() for h, at in ((together, b), (alone, 0)))
        torch.testing.assert_close(*lowest, rtol=0, atol=1e-9)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU()])
def test_compiled_passes_see_the_weights_and_buffers_of_the_moment(monkeypatch, activation: nn.Module) -> None:
    monkeypatch.setattr("robattr.engine.compiled.inductor", traced)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), activation, nn.Flatten(), nn.Linear(256, 3))
    net = net.double().eval()
    x, _, y = images()
    eager = IFIA(net, EPS, ALPHA, 3, k=K, map=integrated_gradients(20), window=2)
    compiled = replace(eager, batch=3)
    before = compiled(x, y).score
    with torch.no_grad():
        net[1].running_mean += torch.randn(4)
        net[0].weight *= torch.randn(4, 1, 1, 1)
    after = compiled(x, y).score
    torch.testing.assert_close(after, eager(x, y).score, rtol=0, atol=1e-9)
    assert not torch.allclose(before, after)


def test_compiled_passes_are_of_the_model_as_it_is_and_end_with_it(case, monkeypatch) -> None:
    monkeypatch.setattr("robattr.engine.compiled.inductor", traced)
    _, x, y = case
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 3), nn.Identity()).double()
    eager = IFIA(net, EPS, ALPHA, 3, k=K, map=integrated_gradients(N))
    compiled = replace(eager, batch=4)
    before = compiled(x, y).score
    net[2].register_forward_hook(lambda part, given, out: out.sin())
    after = compiled(x, y).score
    torch.testing.assert_close(after, eager(x, y).score, rtol=0, atol=1e-9)
    assert not torch.allclose(before, after)
    known = weakref.ref(net)
    del net, eager, compiled
    gc.collect()
    assert known() is None


def test_attacks_share_what_they_compile_while_a_block_is_open(case, monkeypatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(passes, "Compiled", lambda fn, name: made.append(name) or fn)
    net, x, y = case
    attack = IFIA(net, EPS, ALPHA, 2, k=K, map=integrated_gradients(N), batch=4)
    with passes.compiled_once():
        attack(x, y)
        once = len(made)
        attack(x[:2], y[:2])
        assert len(made) == once > 0
    attack(x, y)
    assert len(made) == 2 * once
    assert integrated_gradients() == integrated_gradients(), "equal maps share a compiled function"


def test_a_captum_method_can_be_scored(case) -> None:
    captum = pytest.importorskip("captum.attr")
    net, x, y = case

    def attribute(model, x: Tensor, y: Tensor) -> Tensor:
        return captum.InputXGradient(model).attribute(x.clone().requires_grad_(), target=y)

    theirs = IFIA(net, EPS, ALPHA, 4, k=K, map=from_callable(attribute, guide=gradient_input()))(x, y)
    ours = IFIA(net, EPS, ALPHA, 4, k=K, map=gradient_input())(x, y)
    torch.testing.assert_close(theirs.score, ours.score, rtol=0, atol=1e-12)
    torch.testing.assert_close(theirs.perturbed, ours.perturbed, rtol=0, atol=1e-12)


def test_a_transfer_attack_follows_the_other_net(case) -> None:
    net, x, y = case
    attack = IFIA(net, EPS, ALPHA, 4, k=K, map=integrated_gradients(N))
    itself = replace(attack, source=net)(x, y)
    torch.testing.assert_close(itself.perturbed, attack(x, y).perturbed, rtol=0, atol=0)
    torch.manual_seed(8)
    other = Net().double()
    clean = attack.map(net, x, y).detach()
    walk = replace(attack, source=other).iterates(rows_of(attack, x, y))
    step = next(iter(walk))
    assert torch.is_grad_enabled(), "a walk under way leaves the caller's gradient mode alone"
    expected = torch.stack([naive_step("ig", other, x[b], int(y[b]), clean[b]) for b in range(len(x))])
    torch.testing.assert_close(step.x, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(step.map, attack.map(net, step.x, y).detach())


def test_each_kind_moves_what_it_aims_at(case) -> None:
    net, x, y = case
    map = integrated_gradients(N)
    clean = map(net, x, y).detach()
    target = torch.zeros(6, 6, dtype=torch.float64)
    target[4:, 4:] = 1
    shift = {"moved": lambda a, b: -mass_center_displacement(a, b)}
    gain = {"mass": lambda a, b: -(b * target).sum(dim=(1, 2)) / 1e3}
    base = IFIA(net, EPS, ALPHA, STEPS, k=K, map=map)
    aside = replace(base, kind="mass_center", measures=shift)(x, y)
    noise = replace(base, kind="random", measures=shift)(x, y)
    assert aside.worst["moved"].mean() < noise.worst["moved"].mean()
    there = replace(base, kind="target", target=target, measures=gain)(x, y)
    assert (-there.worst["mass"] * 1e3 > (clean * target).sum(dim=(1, 2))).all()


def test_compiled_passes_are_padded_to_one_shape(case, monkeypatch) -> None:
    net, x, y = case
    shapes = set()

    class Recorded:
        def __init__(self, fn, *, name: str) -> None:
            self.fn = fn

        def __call__(self, parameters, buffers, z: Tensor, *rest: Tensor):
            shapes.add(tuple(z.shape))
            return self.fn(parameters, buffers, z, *rest)

    monkeypatch.setattr(passes, "Compiled", Recorded)
    eager = IFIA(net, EPS, ALPHA, 3, k=K, restarts=2, map=integrated_gradients(N))
    for part in (slice(0, 4), slice(0, 2)):
        whole, padded = eager(x[part], y[part]), replace(eager, batch=5)(x[part], y[part])
        torch.testing.assert_close(padded.perturbed, whole.perturbed, rtol=0, atol=1e-12)
        torch.testing.assert_close(padded.history["kendall"], whole.history["kendall"], rtol=0, atol=1e-12)
    assert shapes == {(10, 1, 6, 6)}


@pytest.mark.parametrize("function", [OwnTanh, OldTanh])
def test_a_model_with_an_autograd_function_of_its_own_compiles(function, monkeypatch) -> None:
    monkeypatch.setattr("robattr.engine.compiled.inductor", traced)
    torch.manual_seed(0)
    net = conv(OwnActivation(function)).eval()
    known = conv(nn.Tanh()).eval()
    known.load_state_dict(net.state_dict())
    x, _, y = (t.float() if t.is_floating_point() else t for t in images())
    attack = IFIA(net, EPS, ALPHA, 3, k=K, map=integrated_gradients(N))
    plain = replace(attack, model=known)(x, y)
    found = replace(attack, batch=3)(x, y)  # a fall-back to eager would be an error
    torch.testing.assert_close(found.perturbed, plain.perturbed)
    torch.testing.assert_close(found.score, plain.score)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(("beta", "relative", "keep"), [(1.0, False, 0.0), (10.0, True, 0.1), (inf, False, 0.1)])
def test_compiled_functions_give_the_gradient_of_every_loss_and_twin(
    case, monkeypatch: pytest.MonkeyPatch, kind: str, beta: float, relative: bool, keep: float
) -> None:
    monkeypatch.setattr(passes, "Compiled", partial(Compiled, backend=traced))
    net, x, y = case
    map = integrated_gradients(N)
    clean = map(net, x, y).detach()
    reference = loss_reference(kind, clean, lambda: clean, k=K, target=None)
    how = {"kind": kind, "keep": keep, "relative": relative}
    with torch.no_grad(), second_order(net):
        found = passes.compiled_gradient(net, map, **how)(x, y, reference, y, beta)
        plain = passes.attack_gradient(net, map, **how)(x, y, reference, y, beta)
    for ours, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_compiled_functions_of_a_map_with_noise_repeat(case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "Compiled", partial(Compiled, backend=traced))
    net, x, y = case
    map = smooth_grad(3)
    with torch.no_grad(), second_order(net):
        clean, _ = passes.map_and_logits(net, map)(x, y)
        plain = passes.attack_gradient(net, map, kind="cosine", keep=0.0)(x, y, clean.flip(0), y, 1.0)
        for _ in range(2):  # the first call compiles
            torch.testing.assert_close(passes.compiled_map(net, map)(x, y)[0], clean)
            found = passes.compiled_gradient(net, map, kind="cosine", keep=0.0)(x, y, clean.flip(0), y, 1.0)
            torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("activation", "functions"), [(nn.ReLU, 5), (nn.GELU, 4)])
def test_twins_of_a_protocol_share_their_compiled_functions(
    monkeypatch: pytest.MonkeyPatch, activation: type[nn.Module], functions: int
) -> None:
    """The map, the relative twins', the gradient of that, the term that keeps the prediction, the paper's gradient.

    A network without ReLUs is its own twin.
    """
    made: list[str] = []
    monkeypatch.setattr(passes, "Compiled", lambda fn, name: made.append(name) or fn)
    torch.manual_seed(0)
    net = conv(activation()).eval()
    x, _, y = (t.float() if t.is_floating_point() else t for t in images())
    maps = [integrated_gradients(20), integrated_gradients(20).coarse]
    with passes.compiled_once(), torch.no_grad(), second_order(net):
        for map in maps:
            passes.compiled_map(net, map)(x, y)
        assert len(made) == 1
        clean = maps[0](net, x, y)
        passes.compiled_gradient(net, maps[1], kind="topk", keep=0.0)(x, y, clean, y, 1.0)  # the paper's
        assert len(made) == 2
        for kind in ("soft_topk", "rank", "mass_center", "cosine"):
            reference = loss_reference(kind, clean, lambda: clean, k=K, target=None)
            for beta in (10.0, 30.0):
                passes.compiled_gradient(net, maps[1], kind=kind, keep=0.1, relative=True)(x, y, reference, y, beta)
    assert len(made) == functions


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("kind", ["rank", power(l2, 2) @ IG(rule=midpoint(2))], ids=["loss", "change"])
def test_a_twin_that_sharpens_compiles_once(monkeypatch: pytest.MonkeyPatch, kind, relative: bool) -> None:
    made = []
    monkeypatch.setattr(
        passes, "Compiled", lambda fn, name: made.append(name) or Compiled(fn, name=name, backend=traced)
    )
    torch.manual_seed(0)
    net = conv(nn.ReLU()).double().eval()
    x, _, y = images()
    eager = IFIA(
        net, EPS, ALPHA, 4, k=K, kind=kind, map=simple_gradient(), beta=(1.0, 9.0), relative=relative, start="ball"
    )  # fmt: skip
    found, wanted = replace(eager, batch=len(x))(x, y), eager(x, y)
    torch.testing.assert_close(found.perturbed, wanted.perturbed)
    assert len(made) == 2, "the gradient and the map"


def test_attacks_without_gradients_run_in_the_batches_of_the_papers(case) -> None:
    """Nothing is differentiated in z, so a fine map takes no smaller ones; another size is another compilation."""
    net, x, _ = case
    paper = IFIA(net, EPS, ALPHA, 2, map=integrated_gradients(100), restarts=3, window=10, batch=512)
    for kind in ("random", "score"):
        assert replace(paper, kind=kind, restarts=1, window=1).rows(x) == paper.rows(x)
    assert replace(paper, window=1).rows(x) < paper.rows(x)


@pytest.mark.parametrize(
    "map", [integrated_gradients(20), integrated_gradients(rule=midpoint(10))], ids=["right", "mid"]
)
def test_segments_of_the_ray_add_up_to_the_map(case, monkeypatch: pytest.MonkeyPatch, map: AttributionMap) -> None:
    monkeypatch.setattr(passes, "Compiled", partial(Compiled, backend=traced))
    net, x, y = case
    with torch.no_grad(), second_order(net):
        ours, logits = passes.compiled_map(net, map)(x, y)
        torch.testing.assert_close(ours, map(net, x, y), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(logits, net(x))
    assert not integrated_gradients(15).segments  # not a whole number of segments: the map is compiled as it is
    doubled = replace(map, of=lambda model, x, y: 2 * map.of(model, x, y))
    assert not doubled.segments  # no longer that attribution


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "topkk"}, "did you mean 'topk'"),
        ({"kind": "target"}, "needs target="),
        ({"start": "corner"}, "'step' or 'ball'"),
        ({"k": 99}, "choose another k"),
    ],
)
def test_bad_settings_are_refused(case, change, says: str) -> None:
    net, x, y = case
    with pytest.raises(InvalidInput, match=says):
        replace(IFIA(net, EPS, ALPHA, 2, k=K, map=simple_gradient()), **change)(x, y)


@pytest.mark.parametrize("window", [1, 3])
def test_directions_in_bf16_and_scores_in_float32(window: int) -> None:
    net = conv(nn.Softplus()).eval()
    x, _, y = (t.float() if t.is_floating_point() else t for t in images())
    seen: list[tuple[int, str]] = []

    def spied(map: AttributionMap) -> AttributionMap:
        def of(model: Model, x: Tensor, y: Tensor) -> Tensor:
            seen.append((map.nodes, in_use(x.device)))
            return map.of(model, x, y)

        return replace(map, of=of)

    fine = integrated_gradients(30)
    fine = replace(spied(fine), coarse=spied(fine.coarse))
    attack = IFIA(net, EPS, ALPHA, 6, k=K, map=fine, window=window, directions="bf16")
    found = attack(x, y)
    if window > 1:
        assert set(seen) == {(30, "fp32"), (10, "bf16")}  # scores; directions and the choice in a window
    else:  # the same map gives directions and scores
        assert set(seen) == {(30, "fp32"), (30, "bf16")}
    torch.testing.assert_close(found.map, fine(net, found.perturbed, y).detach())
    assert not torch.equal(found.perturbed, x)


def test_a_known_clean_map_changes_nothing(case) -> None:
    net, x, y = case
    attack = IFIA(net, EPS, ALPHA, 3, k=K, restarts=2, map=integrated_gradients(N))
    clean = attack.map(net, x, y).detach()
    for one, two in zip(attack(x, y).worst.values(), attack(x, y, clean=clean).worst.values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


def test_a_twin_sharpens_as_the_step_shrinks(case) -> None:
    """Against the formula, written out: β of 5 to 50 in equal ratios, a step of ε·5/β, a quarter of momentum."""
    net, x, y = case
    attack = IFIA(net, EPS, ALPHA, 4, k=K, map=integrated_gradients(N), beta=(5.0, 50.0), relative=True, start="ball")
    rows = rows_of(attack, x, y)
    walk = list(attack.iterates(rows))
    mask = loss_reference("topk", rows.clean, lambda: rows.clean, k=K, target=None)
    z = before = attack.starts(x, rows.names)
    within = LinfBall(EPS, attack.bounds)
    with second_order(net):
        for t, found in enumerate(walk):
            beta = 5.0 * 10 ** (t / 3)
            assert attack.betas[t] == pytest.approx(beta)
            direction = passes.attack_gradient(net, attack.guide, kind="topk", keep=0.0, relative=True)
            with torch.no_grad():
                u = within.project(z + EPS * 5.0 / beta * direction(z, y, mask, y, beta)[0].sign(), x)
                z, before = within.project(z + 0.75 * (u - z) + 0.25 * (z - before), x), z
            torch.testing.assert_close(found.x, z)
    assert [int(step.t[0]) for step in walk] == [1, 2, 3, 4]


@pytest.mark.parametrize("beta", [(10.0, 30.0, 100.0), (10.0,), (30.0, 10.0), (10.0, inf), (0.0, 10.0)])
def test_a_twin_sharpens_between_two_numbers(case, beta: tuple[float, ...]) -> None:
    net, x, y = case
    with pytest.raises(InvalidInput, match="two growing ones"):
        IFIA(net, EPS, ALPHA, 2, k=K, map=integrated_gradients(N), beta=beta)(x, y)


def test_scoring_fewer_iterates_scores_a_subset(case) -> None:
    net, x, y = case
    attack = IFIA(net, EPS, ALPHA, 7, k=K, map=simple_gradient())
    every, third = attack(x, y), replace(attack, every=3)(x, y)
    assert third.history["kendall"].shape == (len(x), 3)  # iterates 3, 6 and the last
    assert (third.score >= every.score).all()
    assert set(third.iterate.tolist()) <= {0, 3, 6, 7}


@pytest.mark.parametrize("activation", [None, nn.GELU()])
def test_of_a_window_the_iterate_with_the_lowest_coarse_score_is_scored(case, activation) -> None:
    net, x, y = case
    if activation:  # its own twin
        net = nn.Sequential(net.conv, activation, nn.Flatten(), net.fc)
    fine, coarse = integrated_gradients(N), integrated_gradients(2)
    attack = IFIA(net, EPS, ALPHA, 9, k=K, map=fine, restarts=2)
    screened = replace(attack, map=replace(fine, coarse=coarse, guide=fine), window=3)
    rows = rows_of(attack, x, y, restart=1)
    walk, short = (list(a.iterates(rows)) for a in (attack, screened))
    assert len(short) == screened.scored == 3
    before = coarse(net, x, y)
    for window, found in zip((walk[:3], walk[3:6], walk[6:]), short, strict=True):
        for b in range(len(x)):
            rough = [
                kendalltau(before[b].detach().numpy(), coarse(net, step.x, y)[b].detach().numpy()).statistic
                if step.kept[b]
                else inf
                for step in window
            ]
            best = window[rough.index(min(rough))]
            assert int(found.t[b]) == int(best.t[b])
            assert torch.equal(found.x[b], best.x[b])
            assert found.scores["kendall"][b] == best.scores["kendall"][b]
    exact = attack(x, y)
    assert (screened(x, y).score >= exact.score).all()
    torch.testing.assert_close(screened(x, y).flips, exact.flips)
    guided = replace(attack, map=replace(fine, guide=coarse))
    unguided = replace(attack, map=replace(fine, coarse=coarse), window=3)  # the coarse version gives the direction too
    walk, short = (list(a.iterates(rows)) for a in (guided, unguided))
    for found in short:
        for b, t in enumerate(found.t.tolist()):
            assert torch.equal(found.x[b], walk[t - 1].x[b])
    same = replace(attack, map=replace(fine, coarse=fine), window=3)(x, y)
    assert torch.equal(same.score, exact.score)
    assert torch.equal(same.iterate, exact.iterate)
    assert torch.equal(replace(attack, window=3)(x, y).history["kendall"], exact.history["kendall"])


@pytest.mark.parametrize("kind", ["soft_topk", "score"])
def test_what_a_window_is_screened_by_is_what_the_attack_looks_for(case, kind: str) -> None:
    """Screened by the map itself, an attack finds its lowest score where it finds it with every iterate scored."""
    net, x, y = case
    fine, aim = integrated_gradients(N), "kendall" if kind == "score" else "topk"
    attack = IFIA(net, EPS, ALPHA, 9, k=K, kind=kind, map=fine, measures=BOTH, aim=aim, start="ball")
    every, screened = attack(x, y), replace(attack, map=replace(fine, coarse=fine), window=3)(x, y)
    assert torch.equal(screened.worst[aim], every.worst[aim])
    assert (every.worst[aim] < 1).any()
    assert screened.history[aim].shape[1] == 3


def test_a_search_climbs_the_coarse_score(case) -> None:
    net, x, y = case
    passed: list[int] = []

    def counted(map: AttributionMap) -> AttributionMap:
        return replace(map, of=lambda model, z, label: passed.append(map.nodes) or map.of(model, z, label))

    fine = replace(counted(integrated_gradients(N)), coarse=counted(integrated_gradients(2)))
    attack = IFIA(net, EPS, ALPHA, 9, k=K, kind="score", map=fine, window=3, measures=BOTH, start="ball")
    list(attack.iterates(rows_of(attack, x, y, restart=0)))
    assert passed.count(2) == 1 + 1 + 9  # x, the start, each trial once
    assert passed.count(N) == 1 + 3  # x, and one of each window


def test_a_search_needs_no_gradient(case) -> None:
    """Neither the map nor the logits can be differentiated in x."""
    net, x, y = case

    class Hidden(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return net(z.detach())

    def shown(_, z: Tensor, labels: Tensor) -> Tensor:
        return simple_gradient().of(net, z.detach(), labels).detach()

    map = from_callable(shown)
    attack = IFIA(Hidden(), EPS, ALPHA, 30, kind="score", k=K, map=map)
    found = attack(x, y)
    assert found.score.mean() < 0.95
    alone = torch.cat([attack(x[[b]], y[[b]], ids=[b]).score for b in range(len(x))])
    torch.testing.assert_close(found.score, alone, rtol=0, atol=1e-12)


def test_a_change_of_the_formula_is_a_loss(case) -> None:
    """‖x' − x‖²: the ascent goes to the corners of the ball."""
    net, x, y = case
    far = power(l2, 2) @ displacement
    attack = IFIA(net, EPS, ALPHA, 12, kind=far, map=simple_gradient(), start="ball")
    walk = list(attack.iterates(rows_of(attack, x, y)))
    inside = (x > EPS) & (x < 1 - EPS)
    torch.testing.assert_close((walk[-1].x - x).abs()[inside], torch.full_like(x[inside], EPS), rtol=0, atol=1e-9)


class Counting(torch.autograd.Function):
    """The identity, which counts the examples that pass forward, backward, and backward through backward."""

    seen = 0

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        Counting.seen += len(x)
        return x.clone()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return Counting.apply(g)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"restarts": 2, "keep": 0.1},
        {"beta": (2.0, inf), "keep": 0.1, "every": 3, "adaptive": True},
        {"kind": "random"},
        {"kind": "score"},
        {"map": SCREENED, "window": 3, "restarts": 2},
        {"map": SCREENED, "window": 3, "beta": (2.0, inf), "keep": 0.1, "adaptive": True},
        {"map": SCREENED, "window": 3, "kind": "score"},
    ],
    ids=["one", "restarts", "twins", "random", "score", "window", "window, twins", "window, score"],
)
@pytest.mark.parametrize("activation", [F.relu, torch.tanh])
def test_the_cost_is_the_number_of_passes(change, activation) -> None:
    """Of a network that is its own twin, the gradients screen, of which two are for that alone: at x and at the end."""

    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(9, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(activation(Counting.apply(x).flatten(1)))

    torch.manual_seed(0)
    net, x = Counted().double(), torch.rand(2, 1, 3, 3, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    attack = replace(IFIA(net, EPS, ALPHA, 4, k=3, map=simple_gradient()), **change)
    rows = [rows_of(attack, x, y, restart=r) for r in range(attack.restarts)]
    windows = attack.window == 3 and attack.kind == "topk"
    assert attack.shows_coarse(x) == (activation is torch.tanh and windows)
    Counting.seen = 0
    with second_order(net):
        for each in rows:
            list(attack.iterates(each))
    costs, logits = attack.costs, 1
    looked = (attack.steps + 2) * (costs.gradients // attack.steps + attack.restarts * logits) + costs.scores
    made = 2 * (looked if attack.shows_coarse(x) else attack.cost)  # of two examples
    assert Counting.seen == made + windows * (attack.restarts + 1), "one example shows whether it is its own twin"


def test_of_a_window_an_iterate_that_keeps_the_prediction_is_scored(case) -> None:
    """ε is so large that iterates flip: those that do are never the choice of a window that has another one."""
    net, x, _ = case
    y = net(x).argmax(dim=1)
    fine = integrated_gradients(N)
    attack = IFIA(net, 0.5, 0.25, 12, k=K, map=fine)
    every = attack(x, y)
    screened = replace(attack, map=replace(fine, coarse=fine), window=3)(x, y)
    assert (every.flips > 0).any()
    torch.testing.assert_close(screened.score, every.score, rtol=0, atol=1e-9)
    assert torch.equal(screened.kept, every.kept)

"""Faithfulness of a network's maps: against a loop over pixels, Captum and Quantus; its cost; its independence."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.integrate import trapezoid
from torch import Tensor, nn

from evaluation_fixtures import IG, TOY
from robattr.attacks import from_callable, gradient_input, integrated_gradients, simple_gradient
from robattr.attacks.maps import AttributionMap, saliency, smooth_grad
from robattr.auditing.embeddings import per_token
from robattr.evaluation import evaluate, strict
from robattr.evaluation import faithfulness as room
from robattr.evaluation.faithfulness import WINDOWS, contributions, faithfulness, input_dependence, windows
from robattr.evaluation.scores import AREAS, FAITHFULNESS, GAINS
from robattr.metrics.faithfulness import centre_first, edges, infidelity, pixel_counts
from robattr.models import resnet

Case = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture(scope="module")
def double() -> Case:
    """A network with strong opinions in float64, and 5 of its images with two channels."""
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 30, 3)).double().eval()
    net[3].weight.data *= 6
    x = torch.rand(5, 2, 8, 7, dtype=torch.float64)
    return net, x, net(x).argmax(dim=1)


def measured(case: Case, map: AttributionMap, at: slice = slice(None), *, seed: int = 0) -> dict[str, Tensor]:
    net, x, y = case
    clean, attacked = (saliency(map, net, z[at], y[at]) for z in (x, (x + 0.3).clamp(0, 1)))
    ids = range(len(x))[at]
    return faithfulness(map, net, x[at], y[at], clean=clean, attacked=attacked, ids=ids, seed=seed)


def by_loop(net: nn.Module, x: Tensor, label: int, map: Tensor, *, insertion: bool, counts: list[int]) -> float:
    """The area for one image, one pixel of all channels after the other."""
    order = np.lexsort((np.arange(map.numel()), -map.flatten().numpy()))
    height, width = map.shape
    curve = []
    for count in counts:
        z = torch.zeros_like(x) if insertion else x.clone()
        for pixel in order[:count]:
            at = divmod(int(pixel), width)
            z[:, at[0], at[1]] = x[:, at[0], at[1]] if insertion else 0
        curve.append(float(net(z[None]).detach().softmax(dim=1)[0, label]))
    return float(trapezoid(curve, np.array(counts) / (height * width)))


def test_areas_and_gains_equal_a_loop_over_pixels(double: Case) -> None:
    net, x, y = double
    found, counts = measured(double, IG), pixel_counts(56, room.LEVELS)
    clean, attacked = (saliency(IG, net, z, y) for z in (x, (x + 0.3).clamp(0, 1)))
    orders = {"": clean, "_attacked": attacked, "_constant": centre_first(clean), "_edges": edges(x)}
    for b in range(len(x)):
        loop = {
            f"{name}{of}": by_loop(net, x[b], int(y[b]), maps[b], insertion=name == "insertion", counts=counts)
            for name in ("insertion", "deletion")
            for of, maps in orders.items()
        }
        for name, (a, control) in GAINS.items():
            if a in loop and control in loop:
                assert float(found[name][b]) == pytest.approx(loop[a] - loop[control], abs=1e-12)
        for name in AREAS:
            assert float(found[name][b]) == pytest.approx(loop[name], abs=1e-12)


def test_few_levels_are_close_to_every_pixel(double: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    few = measured(double, IG)
    monkeypatch.setattr("robattr.evaluation.faithfulness.pixel_counts", lambda n, levels: list(range(n + 1)))
    every = measured(double, IG)
    for name in ("insertion", "deletion"):  # areas between 0 and 1; a curve of 56 steps seen at 11
        assert (few[name] - every[name]).abs().max() < 0.05
        assert (few[name] - every[name]).mean().abs() < 0.02


@pytest.mark.parametrize("map", [IG, simple_gradient()], ids=lambda m: m.name)
def test_infidelity_is_captums_in_units_of_the_change(double: Case, map: AttributionMap) -> None:
    captum = pytest.importorskip("captum.metrics")
    net, x, y = double
    cut = windows(saliency(map, net, x, y), [(i,) for i in range(5)], 0, 12, images=True)
    mask = cut.view(5 * WINDOWS, 1, 8, 7).expand(-1, 2, -1, -1)  # Captum repeats every example in place
    attribution = map.of(net, x, y)
    attribution = attribution * x if map.slope else attribution
    theirs = captum.infidelity(
        net, lambda z: (mask.to(z), torch.where(mask, 0, z)), x, attribution,
        target=y, n_perturb_samples=WINDOWS, normalize=True,
    )  # fmt: skip
    logit = lambda z: net(z).gather(1, y.repeat_interleave(WINDOWS)[:, None])[:, 0]  # noqa: E731
    repeated = x.repeat_interleave(WINDOWS, dim=0)
    change = (logit(repeated) - logit(torch.where(mask, 0, repeated))).view(5, WINDOWS)
    expected = (theirs / change.square().mean(dim=1)).detach()
    torch.testing.assert_close(measured(double, map)["infidelity"], expected, rtol=1e-9, atol=1e-12)


def test_deletion_is_quantus_pixel_flipping(monkeypatch: pytest.MonkeyPatch) -> None:
    quantus = pytest.importorskip("quantus", reason="Quantus is not installed")
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(20, 3)).eval(), torch.rand(4, 1, 4, 5)
    y = net(x).argmax(dim=1)
    monkeypatch.setattr("robattr.evaluation.faithfulness.pixel_counts", lambda n, levels: list(range(n + 1)))
    map = saliency(IG, net, x, y)
    flip = quantus.PixelFlipping(
        perturb_baseline=0.0, features_in_step=1, normalise=False, abs=False, disable_warnings=True
    )  # fmt: skip
    curves = flip(
        model=net, x_batch=x.numpy(), y_batch=y.numpy(), a_batch=map[:, None].numpy(), channel_first=True, softmax=True
    )
    start = net(x).detach().softmax(dim=1).gather(1, y[:, None])
    whole = np.concatenate([start.numpy(), np.array(curves)], axis=1)
    expected = torch.from_numpy(trapezoid(whole, dx=1 / 20, axis=1))
    # Probabilities in float32 round by 6e-8 each.
    torch.testing.assert_close(measured((net, x, y), IG)["deletion"], expected.double(), rtol=0, atol=1e-6)


def test_an_exact_attribution_has_no_infidelity_and_no_gap() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    x = torch.rand(6, 1, 8, 8, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    for map in (integrated_gradients(3), gradient_input(), simple_gradient(), smooth_grad(3)):
        assert measured((net, x, y), map)["infidelity"].max() < 1e-12
    tokens = torch.rand(4, 12, 5, dtype=torch.float64) - 0.5
    net = nn.Sequential(nn.Flatten(), nn.Linear(60, 3)).double()
    label = net(tokens).argmax(dim=1)
    for map in (integrated_gradients(3), gradient_input(), simple_gradient()):
        assert measured((net, tokens, label), per_token(map))["infidelity"].max() < 1e-12
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    wrong = from_callable(lambda net, x, y: torch.rand(x.shape, generator=torch.Generator().manual_seed(1)).to(x) - 0.5)
    assert measured((net, x, y), wrong)["infidelity"].mean() > 0.5


def test_the_shortcut_of_standardising_networks_changes_nothing() -> None:
    torch.manual_seed(0)
    net = resnet(3, 1, channels=1).double().eval()
    x = 255 * torch.rand(3, 1, 8, 8, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    quick, whole = (contributions(m, net, x, y) for m in (IG, AttributionMap("ig", IG.of, nodes=4)))
    scale = (whole * quick).sum((1, 2)) / (quick * quick).sum((1, 2))
    torch.testing.assert_close(whole, scale[:, None, None] * quick, rtol=1e-6, atol=1e-8 * float(whole.abs().max()))
    drop = torch.rand(3, WINDOWS, dtype=torch.float64)
    cut = windows(quick, [(i,) for i in range(3)], 0, images=True).double()
    two = [infidelity(torch.einsum("bwn,bn->bw", cut, a.flatten(1)), drop) for a in (quick, whole)]
    torch.testing.assert_close(*two, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", [(12,), (5, 3)], ids=["table", "tokens"])
def test_inputs_that_are_not_images_have_no_edges(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    n = int(np.prod(shape))
    net = nn.Sequential(nn.Flatten(), nn.Linear(n, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.rand(4, *shape, dtype=torch.float64)
    y = net(x).argmax(dim=1)
    found = measured((net, x, y), IG)
    assert "insertion_over_edges" not in found
    assert all(score.shape == (4,) and score.isfinite().all() for score in found.values())
    if len(shape) == 2:  # one value per token
        slope = from_callable(lambda net, x, y: simple_gradient().of(net, x, y).sum(-1), slope=True)
        assert contributions(slope, net, x, y).shape == (4, 5)
        assert measured((net, x, y), slope)["insertion"].isfinite().all()


def test_scores_do_not_depend_on_the_batch_or_its_order(double: Case) -> None:
    whole = measured(double, IG)
    parts = [measured(double, IG, slice(i, i + 1)) for i in range(5)]
    again, other = measured(double, IG), measured(double, IG, seed=1)
    for name, values in whole.items():
        assert torch.equal(values, again[name])
        # The areas are exact; the attribution is computed for several examples at once, and rounds.
        joined = torch.cat([part[name] for part in parts])
        torch.testing.assert_close(values, joined, rtol=0, atol=1e-9 if name == "infidelity" else 0)
    assert not torch.equal(whole["insertion_over_random"], other["insertion_over_random"])
    assert torch.equal(whole["insertion_over_constant"], other["insertion_over_constant"])


def test_the_cost_is_small_and_the_memory_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net, seen = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), []
    x = torch.rand(3, 1, 6, 6)
    y = net(x).argmax(dim=1)
    clean = saliency(simple_gradient(), net, x, y)
    net.register_forward_pre_hook(lambda _, args: seen.append((len(args[0]), torch.is_grad_enabled())))
    call = partial(faithfulness, simple_gradient(), net, x, y, clean=clean, attacked=clean, ids=range(3), seed=0)
    first = call()
    forward = [rows for rows, grad in seen if not grad]
    assert sum(rows for rows, _ in seen) <= 3 * 130
    assert max(forward) <= room.PASS
    seen.clear()
    monkeypatch.setattr(room, "PASS", 16)
    for name, score in call().items():
        torch.testing.assert_close(score, first[name], rtol=1e-5, atol=1e-6)
    assert max(rows for rows, grad in seen if not grad) <= 16


def test_input_dependence(double: Case) -> None:
    net, x, y = double
    fixed = from_callable(lambda net, x, y: torch.arange(56.0).view(1, 8, 7).expand(len(x), 8, 7).to(x))
    torch.testing.assert_close(input_dependence(fixed, net, x, y), torch.ones(5, dtype=torch.float64))
    assert input_dependence(IG, net, x, y).max() < 0.999


def test_records_and_summary_have_the_scores(plain, case) -> None:
    scored = [r for r in plain.records if r["kept"] is not None]
    for name in FAITHFULNESS:
        assert all(r[name] is not None for r in scored)
        mean = sum(r[name] for r in scored) / len(scored)
        column = plain.summary["columns"][name]
        assert column["value"] == pytest.approx(mean)
        assert column["low"] <= mean <= column["high"]
    assert plain.summary["same_class_cosine"]["n"] == len(scored)
    gaps = [(r["completeness_gap"], r["diagnostics"]["completeness_gap"]) for r in scored]
    assert all(clipped == min(1.0, gap) for clipped, gap in gaps)


@pytest.mark.usefixtures("quick_diagnostics")
def test_an_output_that_is_that_of_the_black_image_is_recorded(tmp_path) -> None:
    """Its completeness gap, relative to their difference, is infinite."""

    class Hat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            u = x.flatten(1)
            return torch.stack([2 + u[:, 0] * (1 - u[:, 0]), u.square().mean(dim=1)], dim=1)

    x = torch.rand(2, 1, 6, 6)
    x[0, 0, 0, 0] = 1
    made = evaluate(Hat(), x, torch.zeros(2, dtype=torch.long), protocol=TOY, map=IG, out=tmp_path)
    gaps = [(r["completeness_gap"], r["diagnostics"]["completeness_gap"]) for r in made.records]
    assert gaps[0] == (1.0, None)
    assert gaps[1][0] == gaps[1][1] < 1


@pytest.mark.usefixtures("quick_diagnostics")
def test_a_failed_attack_of_strict_has_no_attacked_map(case) -> None:
    class Brittle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            own = (x.flatten(1) ** 2).sum(dim=1)
            return torch.stack([own, own + 50 * ((x - 0.5).flatten(1) ** 2).sum(dim=1) - 1e-6], dim=1)

    x, y = torch.full((2, 1, 6, 6), 0.5), torch.zeros(2, dtype=torch.long)
    x[:, :, 0, 0] = 0.50001
    easy, hard = (evaluate(Brittle(), x, y, protocol=p, map=simple_gradient()) for p in (TOY, strict(TOY)))
    for a, b in zip(easy.records, hard.records, strict=True):
        assert a["insertion_attacked"] == a["insertion"] == b["insertion"]
        assert b["insertion_attacked"] is b["attacked_over_constant"] is None

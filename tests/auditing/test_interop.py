"""Captum, Quantus, robustness, tables and token embeddings: the neighbours' conventions, and inputs beyond images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from captum import attr
from torch import Tensor, nn
from torch.nn import functional as F

import robattr
from audit_fixtures import Plain, bars, taught
from robattr.attacks import IFIA, integrated_gradients, simple_gradient
from robattr.attacks.maps import magnitude, saliency
from robattr.auditing import (
    AttributionRobustness,
    captum_map,
    for_captum,
    from_robustness,
    per_token,
    to_robustness,
)
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.metrics import spearman


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    torch.manual_seed(0)
    return taught(Plain(), *bars()).eval()


@pytest.mark.parametrize("method", ["Saliency", "InputXGradient", "IntegratedGradients"])
def test_captum_methods_as_maps(plain: nn.Module, method: str) -> None:
    x, y = bars(4)
    map = captum_map(method)
    expected = getattr(attr, method)(plain).attribute(x.clone().requires_grad_(), target=y)
    torch.testing.assert_close(saliency(map, plain, x, y), magnitude(expected.detach()), rtol=1e-4, atol=1e-5)
    assert map.name == f"captum-{method}"


def test_captum_maps_are_attacked_through_their_guide(plain: nn.Module) -> None:
    """Captum's Saliency is the gradient's magnitude: the attack must find exactly what it finds for ours."""
    x, y = bars(4)
    settings = {"eps": 0.1, "alpha": 0.02, "steps": 4, "k": 6}
    theirs = IFIA(plain, map=captum_map("Saliency"), **settings)(x, y)
    ours = IFIA(plain, map=simple_gradient(), **settings)(x, y)
    torch.testing.assert_close(theirs.score, ours.score)
    assert float(theirs.score.min()) < 1


def test_maps_of_tokens_are_attacked_through_guides_of_tokens() -> None:
    """As many rows as tokens and as wide: a guide of another shape would broadcast, and attack other examples."""
    torch.manual_seed(0)
    x, y = bars(8)
    x, net = x[:, 0], nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = {"eps": 0.1, "alpha": 0.02, "steps": 4, "k": 2}
    theirs = IFIA(net, map=per_token(captum_map("Saliency")), **settings)(x, y)
    ours = IFIA(net, map=per_token(simple_gradient()), **settings)(x, y)
    torch.testing.assert_close(theirs.perturbed, ours.perturbed)
    assert float(theirs.score.min()) < 1
    with pytest.raises(InvalidInput, match=r"shape of the scored one, \(8,\), got \(8, 8\): give a guide"):
        IFIA(net, map=replace(per_token(simple_gradient()), guide=simple_gradient()), **settings)(x, y)


def test_captum_names_are_checked(plain: nn.Module) -> None:
    for wrong in ("Salience", "Occlusion", "LayerConductance", "NoiseTunnel", "os.system"):
        with pytest.raises(InvalidInput, match="cannot be used by name"):
            captum_map(wrong)
    x, y = bars(2)
    with pytest.raises(UnsupportedModel, match="no hooks here"):
        saliency(captum_map("InputXGradient"), nn.Sequential(nn.Flatten(), _Fails()), x, y)
    with pytest.raises(UnsupportedModel, match=r"captum:LRP fails on this model: .*Flatten"):
        saliency(captum_map("LRP"), nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), x, y)


class _Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no hooks here")


def test_our_maps_in_captums_visualisation(plain: nn.Module) -> None:
    x, y = bars(2)
    found = saliency(integrated_gradients(4), plain, x, y)
    array = for_captum(found)
    assert array.shape == (2, 8, 8, 1)
    assert np.array_equal(array[1, :, :, 0], found[1].numpy())
    assert np.array_equal(for_captum(x)[0, 3, 4], x[0, :, 3, 4].numpy())
    from captum.attr import visualization
    from matplotlib import pyplot

    figure, _ = visualization.visualize_image_attr(array[0], for_captum(x)[0], method="heat_map", use_pyplot=False)
    pyplot.close(figure)
    with pytest.raises(InvalidInput, match="expected attributions"):
        for_captum(x[0, 0])


def test_a_quantus_style_call_scores_as_the_attack_does(plain: nn.Module) -> None:
    x, y = bars(6)
    wrong = y.clone()
    wrong[2] = (y[2] + 1) % 3
    metric = AttributionRobustness(score="spearman", eps=0.1, steps=3, map=simple_gradient())
    scores = metric(model=plain, x_batch=x.numpy(), y_batch=wrong.numpy(), a_batch=None, device="cpu", batch_size=4)
    assert isinstance(scores, list)
    assert math.isnan(scores[2])
    right = [0, 1, 3, 4, 5]
    attack = IFIA(plain, 0.1, 0.0125, 3, k=6, map=simple_gradient(), measures={"spearman": spearman})
    np.testing.assert_allclose(np.array(scores)[right], attack(x[right], y[right], ids=right).score.numpy(), rtol=1e-6)
    with pytest.raises(InvalidInput, match="whole-number labels, got"):
        metric(model=plain, x_batch=x.numpy(), y_batch=y.numpy() + 0.5)
    with pytest.raises(InvalidInput, match=r"got 8: 8/255\?"):
        AttributionRobustness(eps=8)


def test_a_quantus_explanation_function_is_scored(plain: nn.Module) -> None:
    def explain(model: nn.Module, inputs: np.ndarray, targets: np.ndarray, scale: float = 1.0) -> np.ndarray:
        x = torch.from_numpy(inputs).requires_grad_()
        chosen = model(x).gather(1, torch.from_numpy(targets)[:, None]).sum()
        return scale * torch.autograd.grad(chosen, x)[0].numpy()

    x, y = bars(3)
    metric = AttributionRobustness(eps=0.1, steps=3, k=6)
    call = {"model": plain, "x_batch": x.numpy(), "y_batch": y.numpy(), "explain_func": explain}
    scores = metric(**call)
    assert all(-1 <= s < 1 for s in scores)
    np.testing.assert_allclose(metric(**call, explain_func_kwargs={"scale": 3.0}), scores, rtol=1e-6)
    with pytest.raises(InvalidInput, match="did you mean 'kendall'"):
        AttributionRobustness(score="kendal")


def test_where_no_step_keeps_the_prediction_there_is_no_score() -> None:
    class Brittle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            own = (x.flatten(1) ** 2).sum(dim=1)
            return torch.stack([own, own + 50 * ((x - 0.5).flatten(1) ** 2).sum(dim=1) - 1e-6], dim=1)

    x = torch.full((2, 1, 6, 6), 0.5)
    x[:, :, 0, 0] = 0.50001  # so that the map has an order
    metric = AttributionRobustness(eps=0.1, steps=3, k=6, map=simple_gradient())
    assert all(np.isnan(metric(model=Brittle(), x_batch=x.numpy(), y_batch=np.zeros(2, dtype=int))))


def test_losses_per_example_as_in_robustness(plain: nn.Module) -> None:
    def custom_loss(model, x: Tensor, y: Tensor) -> tuple[Tensor, None]:
        return F.cross_entropy(model(x), y, reduction="none"), None

    x, y = bars(4)
    scalar = from_robustness(custom_loss)
    torch.testing.assert_close(scalar(plain, x, y), robattr.cross_entropy(plain, x, y))
    ball, by = robattr.LinfBall(0.1), robattr.PGD(2, 0.05)
    start = (x + 0.05).clamp(0, 1)
    values = [
        robattr.objectives.madry(ball, by, loss=of)(plain, x, y, start=start).value
        for of in (scalar, robattr.cross_entropy)
    ]
    torch.testing.assert_close(*values)
    losses, extra = to_robustness(robattr.margin)(plain, x, y)
    torch.testing.assert_close(losses, robattr.margin(plain, x, y))
    assert extra is None
    with pytest.raises(InvalidInput, match="one loss per example"):
        from_robustness(lambda m, x, y: (F.cross_entropy(m(x), y), None))(plain, x, y)


def table() -> tuple[nn.Module, Tensor, Tensor]:
    x = torch.rand(40, 6, generator=torch.Generator().manual_seed(2))
    y = (x[:, 0] > x[:, 1]).long()
    return taught(nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 2)), x, y, steps=60), x, y


def test_tables_are_trained_attacked_and_audited(tmp_path) -> None:
    net, x, y = table()
    rho = robattr.objectives.ig_sum_norm(0.1, robattr.LinfBall(0.05), robattr.PGD(2, 0.03), m=3, m_attack=2)
    found = rho(net, x[:8], y[:8])
    found.value.mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert float((found.worst - x[:8]).abs().max()) <= 0.05 + 1e-6
    page = tmp_path / "table.html"
    audit = robattr.audit(net, (x, y), eps=0.05, steps=2, points=4, examples=12, out=page, device="cpu")
    assert page.exists()
    for e in audit.run.evaluations:
        assert e.summary["columns"]["kendall"]["n"] > 0
        assert e.gallery is None

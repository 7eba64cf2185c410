"""The gradient through the average, in parts, against autograd of the whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from robattr.attacks import integrated_gradients, simple_gradient
from robattr.certificates import attack as module
from robattr.certificates.attack import KINDS, SmoothedAttack
from robattr.errors import InvalidInput
from robattr.formula.network import second_order
from robattr.models import resnet

SG = simple_gradient()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Softplus(), nn.Linear(12, 3)).double()


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_mean(kind: str) -> None:
    model, y = net(), torch.tensor([0, 2])
    x, noise, reference = (torch.rand(*shape, 6).double() for shape in ((2,), (2, 5), (2,)))
    attack = SmoothedAttack(model, SG, kind, 0.1, 0.25, beta=torch.inf)
    found, value = attack._grad_and_value(attack._statistic(y), x, noise.split(3, dim=1), reference)

    def whole(z: Tensor) -> Tensor:
        copies = z[:, None] + noise
        logits = model(copies)
        picked = logits[torch.arange(2), :, y]
        if kind == "answer":
            probability = logits.softmax(dim=2)[torch.arange(2), :, y]
            return -probability.mean(dim=1).log()
        (gradient,) = torch.autograd.grad(picked.sum(), copies, create_graph=True)
        a = gradient.abs()
        if kind == "topk":
            a = a / a.mean(dim=2, keepdim=True)
            return -(a.mean(dim=1) * reference).sum(dim=1)
        a = (a / a.norm(dim=2, keepdim=True)).mean(dim=1)
        return -(a * reference).sum(dim=1) / (a.norm(dim=1) * reference.norm(dim=1))

    z = x.clone().requires_grad_()
    expected = whole(z)
    (gradient,) = torch.autograd.grad(expected.sum(), z)
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(found, gradient)


def test_networks_that_are_constant_along_the_ray_are_attacked_through_one_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, y = resnet(3, 1, width=4).eval().double(), torch.tensor([0, 2])
    x, noise, reference = (
        255 * torch.rand(2, 3, 8, 8).double(),
        64 * torch.randn(2, 4, 3, 8, 8).double(),
        torch.rand(2, 64),
    )
    attack = SmoothedAttack(model, integrated_gradients(10), "cosine", 25.0, 64.0)
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    with second_order(model):
        quick = attack._grad_and_value(attack._statistic(y), x, [noise], reference)
        few = max(rows)
        monkeypatch.setattr(module, "constant_along_ray", lambda _, __, z: torch.zeros(len(z), dtype=torch.bool))
        exact = attack._grad_and_value(attack._statistic(y), x, [noise], reference)
    assert (few, max(rows)) == (8, 80)
    torch.testing.assert_close(quick, exact)


def test_the_attack_raises_its_loss_and_stays_in_the_ball() -> None:
    model, y = net().float(), torch.tensor([0, 2])
    x, reference = torch.rand(2, 6), torch.rand(2, 6)
    attack = SmoothedAttack(model, SG, "topk", 0.5, 0.25, steps=10)
    found = attack(x, y, reference, ids=[3, 4])
    assert ((found - x).norm(dim=1) <= 0.5).all()
    noise = 0.25 * torch.randn(2, 500, 6, generator=torch.Generator().manual_seed(1))
    before, after = (attack._grad_and_value(attack._statistic(y), z, [noise], reference)[1] for z in (x, found))
    assert (after > before + 0.01).all()
    torch.testing.assert_close(attack(x[1:], y[1:], reference[1:], ids=[4]), found[1:], rtol=1e-4, atol=1e-4)


def test_copies_that_do_not_fit_pass_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, y, rows = net(), torch.tensor([0, 2]), []
    x, reference = (torch.rand(2, 6).double() for _ in range(2))
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    attack = SmoothedAttack(model, SG, "answer", 0.5, 0.25, steps=2, draws=5)
    whole, together = attack(x, y, reference, ids=[3, 4]), max(rows)
    rows.clear()
    monkeypatch.setattr(module, "rows_that_fit", lambda *_, passes: 6)
    torch.testing.assert_close(attack(x, y, reference, ids=[3, 4]), whole)
    assert (together, max(rows)) == (10, 6)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'cosine'"):
        SmoothedAttack(net(), SG, "cosin", 0.1, 0.25)

"""Curvature terms, against full Hessians and the full Gauss–Newton matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nets import mlp
from robattr import PGD, FiniteDifference, HessianVector, LinfBall, cross_entropy, gauss_newton, l2, logit, power
from robattr.errors import InvalidInput, UnsupportedModel
from robattr.formula.curvature import largest_eigenvalue
from robattr.formula.objective import Robust, averaged


def batch() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.rand(3, 6, dtype=torch.float64)
    return mlp().double(), x, torch.rand_like(x), torch.arange(3)


def hessians(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack(
        [torch.autograd.functional.hessian(lambda p, c=c: net(p[None])[0, c], u) for u, c in zip(x, y, strict=True)]
    )


def test_hessian_vector_products() -> None:
    net, x, x1, y = batch()
    expected = (hessians(net, x, y) @ (x1 - x)[:, :, None])[:, :, 0]
    torch.testing.assert_close(HessianVector()(net, x, x1, y), expected)
    assert torch.autograd.gradcheck(lambda z: HessianVector()(net, x, z, y), x1.requires_grad_())


def test_hessian_vector_products_are_of_eval_mode() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 3)).double()
    _, x, x1, y = batch()
    trained, still = (HessianVector()(net.train(mode), x, x1, y) for mode in (True, False))
    torch.testing.assert_close(trained, still)


def test_random_vectors_of_unit_variance_estimate_the_frobenius_norm() -> None:
    net, x, _, y = batch()
    draw = Robust(power(l2, 2) @ HessianVector(), LinfBall(3.0**0.5, bounds=None), PGD(0, 0.0))
    n = 400
    with torch.no_grad():
        found = averaged(draw, n)(net, x, y).penalty
    exact = hessians(net, x, y).square().sum((1, 2))
    # Var(vᵀMv) ≤ 2‖M‖_F² ≤ 2 tr(M)² for M = HᵀH and entries of kurtosis 9/5 < 3: five standard errors of n draws.
    assert bool(((found - exact).abs() <= 5 * (2.0 / n) ** 0.5 * exact).all())


def test_the_finite_difference_tends_to_the_hessian() -> None:
    net, x, x1, y = batch()
    signs = torch.stack(
        [torch.autograd.functional.jacobian(lambda p, c=c: net(p[None])[0, c], u) for u, c in zip(x1, y, strict=True)]
    ).sign()
    expected = (hessians(net, x1, y) @ signs[:, :, None])[:, :, 0] / 6
    found = FiniteDifference(of=logit, h=1e-5)(net, x, x1, y)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)  # O(h), and rounding 1e-16/h


def test_the_gauss_newton_eigenvalue_is_that_of_the_full_matrix() -> None:
    net, x, x1, y = batch()
    for i, found in enumerate(gauss_newton(net, x, x1, y)):
        w = torch.autograd.functional.jacobian(lambda p: net(p[None])[0], x1[i])
        p = torch.softmax(net(x1[i][None])[0], 0)
        full = w.T @ (torch.diag(p) - torch.outer(p, p)) @ w
        torch.testing.assert_close(found, torch.linalg.eigvalsh(full)[-1])
    assert torch.autograd.gradcheck(lambda z: gauss_newton(net, x, z, y), x1.requires_grad_())


def test_the_largest_eigenvalue_is_lapacks() -> None:
    torch.manual_seed(0)
    root = torch.randn(5, 4, 7, dtype=torch.float64)
    m = root @ root.transpose(1, 2)
    torch.testing.assert_close(largest_eigenvalue(m), torch.linalg.eigvalsh(m)[:, -1])
    single = largest_eigenvalue(m.float()).double()
    torch.testing.assert_close(single, torch.linalg.eigvalsh(m)[:, -1], rtol=1e-5, atol=0)  # a few float32 roundings
    equal = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    assert largest_eigenvalue(equal).tolist() == pytest.approx([1.0, 1.0])
    zero = torch.zeros(1, 3, 3, requires_grad=True)
    largest_eigenvalue(zero).sum().backward()
    assert zero.grad is not None
    assert zero.grad.abs().sum() == 0
    m.requires_grad_()
    with pytest.raises(InvalidInput, match="one derivative"):
        torch.autograd.grad(largest_eigenvalue(m).sum(), m, create_graph=True)


def test_networks_without_curvature() -> None:
    x, y = torch.rand(2, 6), torch.tensor([0, 1])
    relu = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    assert (l2 @ HessianVector())(relu, x, x + 0.1, y).tolist() == pytest.approx([0.0, 0.0], abs=1e-9)
    assert bool(((l2 @ HessianVector(of=cross_entropy))(relu, x, x + 0.1, y) > 0).all())
    with pytest.raises(UnsupportedModel, match="expected a scalar with curvature"):
        (l2 @ HessianVector())(nn.Linear(6, 3), x, x + 0.1, y)
    with pytest.raises(UnsupportedModel, match="cannot be differentiated in the input"):
        (l2 @ HessianVector())(lambda x: relu(x).detach(), x, x + 0.1, y)
    with pytest.raises(InvalidInput, match="h > 0"):
        FiniteDifference(h=0.0)

"""Curvature of a scalar f of the network: Hessian-vector products, a finite difference, the Gauss–Newton eigenvalue.

The logits of a piecewise linear (ReLU) network have no curvature: Hessian products of them are 0. Use a smooth network
(`robattr.smooth(model, beta)`), or a curved scalar such as `cross_entropy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robattr.errors import InvalidInput, UnsupportedModel
from robattr.formula.algebra import Operand
from robattr.formula.change import Change
from robattr.formula.checks import check_number, checked
from robattr.formula.layers import input_gradient
from robattr.formula.maps import Map
from robattr.formula.network import Bound, Model, bind, gradient
from robattr.formula.scalars import Scalar, cross_entropy, logit

SQUARINGS = 24
"""Of a matrix power: separates eigenvalues that differ by a millionth."""


@dataclass(frozen=True)
class HessianVector(Operand):
    """H(x)·(x' − x), H the Hessian of f in x: an attribution whose vector is the step to x'.

    With x' = x + v for a random v of unit variance, `power(l2, 2) @ HessianVector()` estimates ‖H‖_F² without bias. Of
    the logit of a ReLU network it is 0.
    """

    of: Scalar = logit

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        with checked(model, x, x1, y) as net:
            v = x1 - x

            def along(z: Tensor) -> Tensor:
                return (input_gradient(self.of, net, z, y) * v).flatten(1).sum(1)

            try:
                return gradient(along, x)
            except UnsupportedModel:
                input_gradient(self.of, net, x, y)  # raises for a scalar without any gradient
                raise UnsupportedModel(
                    "expected a scalar with curvature, got one whose gradient does not depend on x: use a curved one, "
                    "such as cross_entropy, or robattr.smooth(model, beta)"
                ) from None


@dataclass(frozen=True)
class FiniteDifference(Map):
    """(∇f(x' + h·s) − ∇f(x'))/h, s = sign(∇f(x'))/n a constant direction, n the coordinates of an input (R2ET).

    R2ET divides by 3072, the coordinates of CIFAR-10's images.
    """

    of: Scalar = cross_entropy
    h: float = 1e-3

    def __post_init__(self) -> None:
        check_number("FiniteDifference expects a finite step h", self.h, positive=True)

    def at_point(self, net: Bound, z: Tensor, y: Tensor) -> Tensor:
        here = input_gradient(self.of, net, z, y)
        there = z + (self.h / z[0].numel()) * here.detach().sign()
        return (input_gradient(self.of, net, there, y) - here) / self.h


@dataclass(frozen=True)
class GaussNewton:
    """λ_max(W(diag p − ppᵀ)Wᵀ) at x', W = [∇_x z_c]_c and p = softmax(z).

    With q = √p, diag p − ppᵀ = AAᵀ for A = diag(q)(I − qqᵀ): the same eigenvalue belongs to the C×C matrix AᵀWᵀWA.
    """

    def __call__(self, model: Model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        net = bind(model)
        z = net(x1)
        b, c = z.shape
        labels = torch.arange(c, device=x1.device).repeat_interleave(b)
        rows = x1.repeat(c, *(1,) * (x1.dim() - 1))
        w = input_gradient(logit, net, rows, labels).reshape(c, b, -1).transpose(0, 1)
        q = (0.5 * z.log_softmax(1)).exp()
        a = q[:, :, None] * (torch.eye(c, dtype=z.dtype, device=z.device) - q[:, :, None] * q[:, None, :])
        small = a.transpose(1, 2) @ (w @ w.transpose(1, 2)) @ a
        return largest_eigenvalue(small)


class _LargestEigenvalue(torch.autograd.Function):
    """λ_max(M) = tr(PM), P the projector on its eigenvector: P is also the derivative."""

    @staticmethod
    def forward(ctx: Any, m: Tensor) -> Tensor:
        p = _normalised(m)
        for _ in range(SQUARINGS):
            p = _normalised(p @ p)
        ctx.save_for_backward(p)
        return (p * m).sum((1, 2))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # this pass would be differentiated, and P taken for a constant
            raise InvalidInput("the largest eigenvalue has one derivative here, got a request for a second one")
        p: Tensor = ctx.saved_tensors[0]
        return g[:, None, None] * p


def largest_eigenvalue(m: Tensor) -> Tensor:
    """λ_max of symmetric positive semidefinite matrices (B, n, n), by repeated squaring: M^(2^k)/tr → P.

    Differentiable once. `torch.linalg.eigvalsh` reads a flag from the device, which a CUDA graph does not allow.
    """
    found: Tensor = _LargestEigenvalue.apply(m)  # type: ignore[no-untyped-call]
    return found


def _normalised(m: Tensor) -> Tensor:
    trace: Tensor = m.diagonal(dim1=1, dim2=2).sum(1)
    return m / trace.clamp_min(torch.finfo(m.dtype).tiny)[:, None, None]


gauss_newton: Change = Change.of(GaussNewton())
"""λ_max of the Gauss–Newton matrix of the cross-entropy in x', through a C×C eigenvalue problem (SSR)."""

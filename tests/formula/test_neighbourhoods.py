"""The L1 ball and the box, against SciPy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from nets import mlp
from robattr import PGD, Box, L1Ball, LinfBall, objectives
from robattr.errors import InvalidInput


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_the_projection_on_the_l1_ball_is_the_nearest_point(bounds: tuple[float, float] | None) -> None:
    torch.manual_seed(0)
    x = torch.rand(6, 4, dtype=torch.float64)
    z = x + torch.randn_like(x)
    ball = L1Ball(0.5, bounds)
    found = ball.project(z, x)
    assert bool(((found - x).abs().sum(1) <= 0.5 + 1e-12).all())
    for u, v, p in zip(x.numpy(), z.numpy(), found.numpy(), strict=True):
        # δ = a − b with a, b ≥ 0: a quadratic programme
        limit = (np.inf, np.inf) if bounds is None else (bounds[1] - u, u - bounds[0])
        sides = [(0, float(s)) for side in limit for s in np.broadcast_to(side, 4)]
        solved = minimize(
            lambda ab, u=u, v=v: float(((u + ab[:4] - ab[4:] - v) ** 2).sum()),
            np.zeros(8),
            jac=lambda ab, u=u, v=v: np.concatenate([g := 2 * (u + ab[:4] - ab[4:] - v), -g]),
            bounds=sides,
            constraints={"type": "ineq", "fun": lambda ab: 0.5 - ab.sum(), "jac": lambda ab: -np.ones(8)},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        best = u + solved.x[:4] - solved.x[4:]
        assert ((p - v) ** 2).sum() <= ((best - v) ** 2).sum() + 1e-6  # 24 bisections leave 6e-8 of the step
        np.testing.assert_allclose(p, best, atol=1e-3)  # the objective is flat at its minimum: √1e-6
    inside = x + 0.01 * (0.5 - x)
    torch.testing.assert_close(ball.project(inside, x), inside, rtol=0, atol=0)


def test_starts_and_steps_of_the_l1_ball() -> None:
    x = torch.full((500, 3, 2), 0.5, dtype=torch.float64)
    step = (L1Ball(0.4).start(x) - x).flatten(1)
    length = step.abs().sum(1) / 0.4
    assert bool((length <= 1 + 1e-12).all())
    # P(length ≤ r) = r^6 for a uniform point: the mean is 6/7, with a standard error below 0.13/√500
    assert float(length.mean()) == pytest.approx(6 / 7, abs=5 * 0.13 / 500**0.5)
    g = torch.tensor([[1.0, -3.0, 2.0]])
    assert L1Ball(1.0).direction(g).tolist() == [[0.0, -1.0, 0.0]]
    assert L1Ball(1.0, coordinates=2).direction(g).tolist() == [[0.0, -0.5, 0.5]]


def test_a_linear_network_is_attacked_along_one_coordinate() -> None:
    net = torch.nn.Linear(5, 2).double()
    x, y = torch.rand(3, 5, dtype=torch.float64), torch.tensor([0, 1, 0])
    rho = objectives.madry(L1Ball(0.3, bounds=None), PGD(steps=10, step_size=0.3))(net, x, y)
    wrong = net.weight[1 - y] - net.weight[y]
    gap = (net(x).gather(1, 1 - y[:, None]) - net(x).gather(1, y[:, None]))[:, 0] + 0.3 * wrong.abs().amax(1)
    torch.testing.assert_close(rho.value, torch.nn.functional.softplus(gap), rtol=1e-6, atol=1e-6)


def test_the_box_has_sides_of_its_own() -> None:
    above = torch.tensor([0.2, 0.0, 0.5], dtype=torch.float64)
    box = Box(0.1, above)
    x = torch.rand(50, 3, dtype=torch.float64)
    start = box.start(x)
    for z in (start, box.project(x + torch.randn_like(x), x)):
        assert bool((z >= (x - 0.1).clamp_min(0)).all())
        assert bool((z <= (x + above).clamp_max(1)).all())
    torch.testing.assert_close(box.project(start, x), start, rtol=0, atol=0)
    net, y = mlp().double(), torch.arange(4) % 3
    x = torch.rand(4, 6, dtype=torch.float64)
    starts = LinfBall(0.2).start(x)
    a, b = (objectives.madry(n, PGD(3, 0.1))(net, x, y, start=starts).worst for n in (Box(0.2, 0.2), LinfBall(0.2)))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: L1Ball(-1.0), "radius"),
        (lambda: L1Ball(1.0, coordinates=0), "coordinates ≥ 1"),
        (lambda: Box(-0.1, 0.1), "`below` ≥ 0"),
        (lambda: Box(0.1, torch.tensor([0.1, torch.inf])), "`above` ≥ 0"),
        (lambda: Box("0.1", 0.1), "`below` ≥ 0"),
        (lambda: Box(0.1, 0.1, bounds=(1.0, 0.0)), "low < high"),
    ],
)
def test_mistakes_are_named(wrong, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wrong()

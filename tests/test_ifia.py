"""The attribution attack against a naive reference: one example at a time, autograd and SciPy."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn
from torch.nn import functional as F

from robattr.evaluate import IFIA, integrated_gradients, simple_gradient

N, K, EPS, ALPHA, STEPS = 7, 9, 0.1, 0.02, 12


class Net(nn.Module):
    """Two layers whose activation is an argument, so that the reference below needs no twin of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4 * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, F.relu)

    def run(self, x: Tensor, act) -> Tensor:
        return self.fc(F.max_pool2d(act(self.conv(x)), 1).flatten(1))


@pytest.fixture(scope="module")
def case() -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(3)
    net = Net().double()
    with torch.no_grad():
        net.conv.weight.mul_(3)
    x = torch.rand(5, 1, 6, 6, dtype=torch.float64)
    x[:, :, :2] = 0  # black pixels: exact ties of the IG map
    return net, x, net(x).argmax(dim=1).detach()


def naive_map(name: str, net: Net, x: Tensor, y: int, act) -> Tensor:
    """The reference's map of one image, with a graph."""
    if name == "sg":
        z = x if x.requires_grad else x.clone().requires_grad_()
        (g,) = torch.autograd.grad(net.run(z[None], act)[0, y], z, create_graph=True)
        s = g.abs().sum(0)
    else:
        total = torch.zeros_like(x)
        for i in range(1, N + 1):
            z = (i / N) * x if x.requires_grad else ((i / N) * x).requires_grad_()
            (g,) = torch.autograd.grad(net.run(z[None], act)[0, y], z, create_graph=True)
            total = total + g
        s = (total / N * x).abs().sum(0)
    return s * s.numel() / s.sum()


def naive_attack(name: str, net: Net, x: Tensor, y: int, start: Tensor) -> tuple[list[Tensor], list[float], Tensor]:
    """Iterates, best Kendall so far, and the point it belongs to: the loop of the reference, literally."""
    clean = naive_map(name, net, x, y, F.relu).detach()
    mask = torch.zeros(clean.numel(), dtype=torch.bool)
    mask[(-clean.flatten()).argsort(stable=True)[:K]] = True
    z, best, kept, iterates, history = start, 1.0, x, [], []
    for _ in range(STEPS):
        v = z.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad(naive_map(name, net, v, y, F.softplus).flatten()[mask].sum(), v)
        z = x + (z - ALPHA * g.sign() - x).clamp(-EPS, EPS)
        z = z.clamp(0, 1).detach()
        iterates.append(z)
        if int(net(z[None]).argmax()) == y:
            tau = kendalltau(clean.numpy(), naive_map(name, net, z, y, F.relu).detach().numpy()).statistic
            if tau < best:
                best, kept = tau, z
        history.append(best)
    return iterates, history, kept


@pytest.mark.parametrize("map", [integrated_gradients(N), simple_gradient()], ids=lambda m: m.name)
def test_equals_the_naive_reference(case, map) -> None:
    net, x, y = case
    attack = IFIA(net, EPS, ALPHA, STEPS, k=K, restarts=3, map=map, seed=5)
    found = attack(x, y)
    walks = {}
    for b in range(len(x)):
        for r in range(3):
            start = attack.starts(x[b : b + 1], [(b, r)])[0]
            walks[b, r] = naive_attack(map.name, net, x[b], int(y[b]), start)
        best = min(range(3), key=lambda r: walks[b, r][1][-1])
        assert found.score[b].item() == pytest.approx(walks[b, best][1][-1], abs=1e-12)
        torch.testing.assert_close(found.perturbed[b], walks[b, best][2], rtol=0, atol=1e-12)
        history = [min(walks[b, r][1][t] for r in range(3)) for t in range(STEPS)]
        assert found.history["kendall"][b].tolist() == pytest.approx(history, abs=1e-12)
    rows = [(b, 1) for b in range(len(x))]
    walk = attack.iterates(x, y, map(net, x, y).detach(), start=attack.starts(x, rows), rows=rows)
    for t, step in enumerate(walk):
        expected = torch.stack([walks[b, 1][0][t] for b in range(len(x))])
        torch.testing.assert_close(step.x, expected, rtol=0, atol=1e-12)
    assert found.score.max() < 0.9, "the attack must have done something"

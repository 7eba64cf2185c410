"""Tables instead of images: attributions of a model's features, and how far an attack changes them."""

import sys

import torch
from torch import nn

import robattr
from robattr.auditing import AttributionRobustness

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
torch.manual_seed(1)
x = torch.rand(300, 12)  # (N, features), scaled to [0, 1]
y = (x[:, 0] + x[:, 1] * x[:, 2] > 0.8).long()
noisy = torch.where(torch.rand(200) < 0.1, 1 - y[:200], y[:200])  # a tenth of the training labels is wrong


def trained(rho: robattr.Robust) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        rho(net, x[:200], noisy).value.mean().backward()
        optimizer.step()
    return net


ball, attack = robattr.LinfBall(0.1), robattr.PGD(3, 0.05)
score = AttributionRobustness(score="kendall", eps=0.1, steps=15)
for name, rho in (
    ("natural", robattr.objectives.natural()),
    ("IG-NORM", robattr.objectives.ig_norm(1.0, ball, attack, m=5, m_attack=3)),
):
    net = trained(rho)
    accuracy = (net(x[200:]).argmax(1) == y[200:]).float().mean()
    held = torch.tensor(score(model=net, x_batch=x[200:240], y_batch=y[200:240])).nanmean()
    print(f"{name}: accuracy {accuracy:.0%}, rank correlation of the attributions under attack {held:.2f}")

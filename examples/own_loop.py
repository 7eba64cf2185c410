"""Robust attributions in your own training loop: the objective is a value, and a step is four lines."""

import sys

import torch

import robattr
from robattr import data, models

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
batches = data.Batches(data.load("fashion-mini"), size=50)
net = models.small_cnn()
rho = robattr.objectives.ig_norm(1.0, robattr.LinfBall(0.1), robattr.PGD(3, 0.05), m=4, m_attack=2)
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(steps):
    x, y = batches.batch(step)
    found = rho(net, x, y)
    optimizer.zero_grad()
    found.value.mean().backward()
    optimizer.step()
    if step % 50 == 0 or step == steps - 1:
        print(f"step {step}: loss {found.loss.mean():.3f}, worst ‖IG(x, x')‖₁ {found.penalty.mean():.3f}")

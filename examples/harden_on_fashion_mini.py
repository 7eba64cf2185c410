"""Fine-tune a classifier for robust explanations; one page compares before and after."""

import sys

import torch

import robattr
from robattr import data, models

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
fashion = data.load("fashion-mini")
net = models.small_cnn()
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
batches = data.Batches(fashion, size=50)
for step in range(steps):  # the model you already have
    x, y = batches.batch(step)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()

result = robattr.harden(
    net, fashion, objective="ig-norm", eps=0.1, steps=steps, batch=50, lr=3e-3,
    changes={"attack_steps": 3, "step_size": 0.05, "m": 4, "m_attack": 2},
    examples=32, audit_steps=15, points=10, out="hardened",
)  # fmt: skip
print("before:", result.before.headline)
if result.after is not None:
    print("after: ", result.after.headline)
    print("wrote", result.page)

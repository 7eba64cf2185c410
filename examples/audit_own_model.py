"""Audit your own model: here a small one with batch norm, GELU and its own normalisation of the input."""

import sys

import torch
from torch import nn

import robattr
from robattr import data

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
fashion = data.load("fashion-mini")
net = nn.Sequential(
    nn.Conv2d(1, 16, 5, stride=3), nn.BatchNorm2d(16), nn.GELU(), nn.Conv2d(16, 32, 3, stride=2), nn.GELU(),
    nn.Flatten(), nn.Linear(32 * 9, 10),
)  # fmt: skip
mean, std = 0.286, 0.353
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
batches = data.Batches(fashion, size=50)
for step in range(steps):
    x, y = batches.batch(step)
    optimizer.zero_grad()
    nn.functional.cross_entropy(net((x - mean) / std), y).backward()
    optimizer.step()

# The model sees (x − mean)/std; ε, bounds and maps are in the units of the pixels.
preprocessing = {"mean": mean, "std": std}
print(robattr.doctor(net, fashion, preprocessing=preprocessing))
found = robattr.audit(
    net, fashion, preprocessing=preprocessing, eps=8 / 255, maps="ig", examples=24, steps=10, points=10,
    protocol="paper", out="audit.html",
)  # fmt: skip
print(found.verdict.headline)
for step_to_take in found.verdict.next_steps:
    print("→", step_to_take)
print("wrote", found.page)

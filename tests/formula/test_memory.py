"""Peak memory of a gradient step, measured in a process of its own: flat in m when the nodes run in chunks."""

from __future__ import annotations

import os
import subprocess
import sys

STEPS = """
import torch
from torch import nn
from robattr import IG, l1, midpoint
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Softplus(), nn.Conv2d(8, 8, 3, padding=1), nn.Softplus(),
                    nn.Flatten(), nn.Linear(8 * 16 * 16, 10))
x, y = torch.rand(16, 1, 16, 16), torch.arange(16) % 10

def step(m, chunk):
    net.zero_grad()
    (l1 @ IG(rule=midpoint(m), chunk=chunk))(net, x, 1 - x, y).mean().backward()

def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

def peak(m, chunk):
    open("/proc/self/clear_refs", "w").write("5")    # the high-water mark starts here
    base = status("VmRSS")
    step(m, chunk)
    return status("VmHWM") - base

step(12, 6)                                          # libraries loaded, kernels chosen
print(peak(12, 6), peak(60, 6), peak(36, None))
"""


def test_memory_is_flat_in_m_when_chunked_and_is_not_otherwise() -> None:
    environment = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", STEPS],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    few, many, whole = map(int, done.stdout.split())  # kB above the resting level
    assert many <= 2 * few  # five times the nodes
    assert whole > 4 * few  # six times the chunk: the measure sees it

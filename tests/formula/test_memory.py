"""Peak memory of a gradient step, measured in a process of its own: flat in m when the nodes run in chunks."""

from __future__ import annotations

import subprocess
import sys

STEP = """
import sys, torch
from torch import nn
from robattr import IG, l1, midpoint
torch.manual_seed(0)
torch.set_num_threads(1)
m, chunk = int(sys.argv[1]), int(sys.argv[2]) or None
net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.Softplus(), nn.Conv2d(16, 16, 3, padding=1), nn.Softplus(),
                    nn.Flatten(), nn.Linear(16 * 20 * 20, 10))
x, y = torch.rand(16, 1, 20, 20), torch.arange(16) % 10

def step(nodes, chunk):
    net.zero_grad()
    (l1 @ IG(rule=midpoint(nodes), chunk=chunk))(net, x, 1 - x, y).mean().backward()

def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

step(1, None)                                    # libraries loaded, kernels chosen
open("/proc/self/clear_refs", "w").write("5")    # the high-water mark starts here
base = status("VmRSS")
step(m, chunk)
print(status("VmHWM") - base)
"""


def peak(m: int, chunk: int) -> int:
    """kB above the resting level."""
    done = subprocess.run(
        [sys.executable, "-c", STEP, str(m), str(chunk)],
        capture_output=True,
        text=True,
        check=True,
        env={"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "PATH": ""},
    )
    return int(done.stdout)


def test_memory_is_flat_in_m_when_chunked_and_is_not_otherwise() -> None:
    ten, many, whole = peak(10, 5), peak(200, 5), peak(40, 0)
    assert many <= 1.3 * ten
    assert whole > 2 * ten  # the measure would see it

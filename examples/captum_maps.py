"""Attack Captum's explanations, and show ours with Captum. Needs pip install "robattr[interop,report]"."""

import sys

import torch
from captum.attr import visualization
from matplotlib import pyplot

from robattr import data, models
from robattr.attacks import IFIA, integrated_gradients
from robattr.auditing import captum_map, for_captum

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
fashion = data.load("fashion-mini")
batches = data.Batches(fashion, size=50)
net = models.small_cnn()
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for step in range(steps):  # an ordinary classifier
    x, y = batches.batch(step)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()

x, _, _ = fashion.examples("test", 8)
y = net(x).argmax(1)
for map in (captum_map("Saliency"), captum_map("InputXGradient"), integrated_gradients(20)):
    found = IFIA(net, eps=0.1, alpha=0.0125, steps=15, k=100, map=map)(x, y)
    print(f"{map.name}: Kendall's τ between the maps before and after is {found.score.mean():.2f}")

# The maps of the last attack in Captum's visualisation.
maps, images = for_captum(found.map), for_captum(found.perturbed)
figure, _ = visualization.visualize_image_attr(
    maps[0], images[0], method="blended_heat_map", sign="positive", use_pyplot=False
)
figure.savefig("captum.png")
pyplot.close(figure)

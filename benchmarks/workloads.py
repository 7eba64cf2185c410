"""The networks and batches of the benchmark: the paper's networks at the paper's settings, without a download.

The images are those of the embedded fashion-mini, resized and scaled to what each network expects. Times do not depend
on the images. Quadrature errors do, so each network is first trained on them for a few steps.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import port
from robattr import data, models, objectives, recipes
from robattr.formula import PGD, LinfBall, Robust
from robattr.formula.quadrature import Rules, right
from robattr.training import TrainConfig

RECIPES = {
    "mini": "fashion-mnist/ig-norm",  # on the small CNN
    "mnist": "mnist/ig-norm",
    "fashion": "fashion-mnist/ig-norm",
    "gtsrb": "gtsrb/ig-norm",
    "flower": "flower/ig-norm",
}
DATASETS = {"mini": "fashion-mini", "fashion": "fashion-mnist"}
SHAPES = {"mini": (1, 28), "mnist": (1, 28), "fashion": (1, 28), "gtsrb": (3, 32), "flower": (3, 128)}


@dataclass(frozen=True)
class Workload:
    """A network, a batch, a start of the attack, and the recipe of its training."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    start: Tensor
    config: TrainConfig
    bounds: tuple[float, float]

    @property
    def device(self) -> torch.device:
        return self.x.device

    def objective(self, rule: Rules = right, *, m: int | None = None, m_attack: int | None = None) -> Robust:
        """IG-NORM with the settings of the recipe; rule, m and m_attack can be replaced."""
        config = self.config
        ball, by = LinfBall(config.eps, self.bounds), PGD(config.attack_steps, config.step_size)
        m, m_attack = m or config.m, m_attack or config.m_attack
        return objectives.ig_norm(config.weight, ball, by, m=m, m_attack=m_attack, rule=rule)

    def port_attack(self) -> port.Attack:
        config, ends = self.config, port.right_ends(self.config.m_attack)
        return port.Attack(config.eps, config.step_size, config.attack_steps, ends, self.bounds)

    def first(self, n: int) -> Workload:
        """The first n examples."""
        return replace(self, x=self.x[:n], y=self.y[:n], start=self.start[:n])

    def copied(self) -> Workload:
        """With a copy of the network."""
        return replace(self, model=copy.deepcopy(self.model))

    @property
    def setting(self) -> str:
        config, shape = self.config, "×".join(map(str, self.x.shape[1:]))
        return (
            f"batch {len(self.x)} of {shape}, m = {config.m} ({config.m_attack} in the attack), {config.attack_steps} "
            f"attack steps, {sum(p.numel() for p in self.model.parameters()):,} parameters"
        )


def workload(name: str, device: torch.device, *, quick: bool = False, batch: int | None = None) -> Workload:
    """The workload of that name; `quick` takes an eighth of the batch and at most two attack steps."""
    config = recipes.get(RECIPES[name])
    if quick:
        config = replace(config, batch=max(2, config.batch // 8), attack_steps=min(2, config.attack_steps))
    torch.manual_seed(0)
    model = models.for_dataset(DATASETS.get(name, name)).to(device)
    channels, size = SHAPES[name]
    bounds = (0.0, 255.0) if channels == 3 else (0.0, 1.0)
    take = batch or config.batch
    x, y = images(max(take, 640), channels=channels, size=size, high=bounds[1])
    x, y = x.to(device), y.to(device)
    fit(model, x, y, steps=300 if device.type == "cuda" else 60)
    x, y = x[:take], y[:take]
    noise = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)).to(device)
    start = LinfBall(config.eps, bounds).start(x, lambda _: noise)
    return Workload(name, model.eval(), x, y, start, config, bounds)


def images(count: int, *, channels: int, size: int, high: float) -> tuple[Tensor, Tensor]:
    """`count` fashion-mini images as (count, channels, size, size) in [0, high]; colour images get a random tint."""
    x, y, _ = data.load("fashion-mini").examples("train")
    draws = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(x), (count,), generator=draws)
    x, y = x[chosen], y[chosen]
    if x.shape[-1] != size:
        x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    if channels > 1:
        tint = 0.5 + 0.5 * torch.rand(count, channels, 1, 1, generator=draws)
        ground = 0.2 * torch.rand(count, channels, size, size, generator=draws)  # photographs have no exact black
        x = 0.8 * x * tint + ground
    return high * x, y


def fit(model: nn.Module, x: Tensor, y: Tensor, *, steps: int, rate: float = 1e-3) -> None:
    """Train for a few steps, so that the network is not random on these images."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for i in range(steps):
        part = torch.arange(32, device=x.device).add(32 * i) % len(x)
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    optimizer.zero_grad()

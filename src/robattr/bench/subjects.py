"""What is measured: the paper's networks at the paper's settings, on images that need no download.

The images are the embedded fashion-mini ones, resized and scaled to what each network expects. Times do not depend on
them; quadrature errors do, so each network first learns them for a moment.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robattr import data, models, objectives, recipes
from robattr.bench import naive
from robattr.formula import PGD, LinfBall, Robust
from robattr.formula.quadrature import Rules, right
from robattr.training.config import TrainConfig

RECIPES = {
    "mini": "fashion-mnist/ig-norm",
    "mnist": "mnist/ig-norm",
    "gtsrb": "gtsrb/ig-norm",
    "flower": "flower/ig-norm",
}
"""Each case by the recipe whose settings it takes; `mini` is the small CNN at those of Fashion-MNIST."""

DATASETS = {"mini": "fashion-mini"}
SHAPES = {"mini": (1, 28), "mnist": (1, 28), "gtsrb": (3, 32), "flower": (3, 128)}


@dataclass(frozen=True)
class Subject:
    """A network, a batch, and the recipe they are trained by."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    start: Tensor
    run: TrainConfig
    bounds: tuple[float, float]

    @property
    def device(self) -> torch.device:
        return self.x.device

    @property
    def within(self) -> LinfBall:
        return LinfBall(self.run.eps, self.bounds)

    def objective(self, rule: Rules = right, *, m: int | None = None, m_attack: int | None = None) -> Robust:
        """IG-NORM as the recipe has it; another rule and other numbers of points where given."""
        run = self.run
        by = PGD(run.attack_steps, run.step_size)
        return objectives.ig_norm(
            run.weight, self.within, by, m=m or run.m, m_attack=m_attack or run.m_attack, rule=rule
        )

    def naive_attack(self, points: list[float] | None = None) -> naive.Attack:
        run = self.run
        ends = points or naive.right_ends(run.m_attack)
        return naive.Attack(run.eps, run.step_size, run.attack_steps, ends, self.bounds)

    def first(self, n: int) -> Subject:
        """The same on the first n examples."""
        return replace(self, x=self.x[:n], y=self.y[:n], start=self.start[:n])

    def copied(self) -> Subject:
        """With a network of its own."""
        return replace(self, model=copy.deepcopy(self.model))

    @property
    def setting(self) -> str:
        run = self.run
        return (
            f"batch {len(self.x)} of {'×'.join(map(str, self.x.shape[1:]))}, m = {run.m} ({run.m_attack} in the "
            f"attack), {run.attack_steps} attack steps, {sum(p.numel() for p in self.model.parameters()):,} parameters"
        )


def subject(name: str, device: torch.device, *, quick: bool = False, batch: int | None = None) -> Subject:
    """The case of that name. Quick: an eighth of the batch and at most two attack steps, for a look only."""
    run = recipes.get(RECIPES[name])
    if quick:
        run = replace(run, batch=max(2, run.batch // 8), attack_steps=min(2, run.attack_steps))
    torch.manual_seed(0)
    model = models.for_dataset(DATASETS.get(name, name)).to(device)
    channels, size = SHAPES[name]
    bounds = (0.0, 255.0) if channels == 3 else (0.0, 1.0)
    take = batch or run.batch
    x, y = pictures(max(take, 640), channels=channels, size=size, high=bounds[1], device=device)
    learn(model, x, y, steps=300 if device.type == "cuda" else 60)
    model.eval()
    x, y = x[:take], y[:take]
    draws = torch.Generator().manual_seed(1)
    noise = torch.rand(x.shape, generator=draws).to(device)
    start = LinfBall(run.eps, bounds).start(x, lambda _: noise)
    return Subject(name, model, x, y, start, run, bounds)


def pictures(
    count: int, *, channels: int, size: int, high: float, device: torch.device, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """`count` fashion-mini images as (count, channels, size, size) in [0, high], every channel with its own tint."""
    x, y, _ = data.load("fashion-mini").examples("train")
    draws = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(x), (count,), generator=draws)
    x, y = x[chosen], y[chosen]
    if x.shape[-1] != size:
        x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    if channels > 1:
        tint = 0.5 + 0.5 * torch.rand(count, channels, 1, 1, generator=draws)
        ground = 0.2 * torch.rand(count, channels, size, size, generator=draws)  # no camera gives exact black
        x = 0.8 * x * tint + ground
    return (high * x).to(device), y.to(device)


def learn(model: nn.Module, x: Tensor, y: Tensor, *, steps: int) -> None:
    """A few plain steps on these images, so that the network is neither random nor flat on them."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for i in range(steps):
        part = torch.arange(32, device=x.device).add(32 * i) % len(x)
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
    optimizer.zero_grad()

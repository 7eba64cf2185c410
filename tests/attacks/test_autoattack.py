"""The prediction attacks of `strict` against AutoAttack (Croce & Hein 2020), by torchattacks.

torchattacks asks for an old version of requests, so it is not a dependency: `pip install --no-deps torchattacks`.
"""

from __future__ import annotations

import pytest
import torch

from robattr import PGD, LinfBall, data, models, objectives
from robattr.evaluation.protocol import paper, strict
from robattr.evaluation.suite import prediction_attacks


def test_strict_finds_as_many_adversarial_examples_as_autoattack() -> None:
    torchattacks = pytest.importorskip(
        "torchattacks", reason="torchattacks is not installed: pip install --no-deps torchattacks"
    )
    torch.manual_seed(0)
    mini = data.load("fashion-mini")
    batches, model = data.Batches(mini, size=50), models.small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rho = objectives.madry(within=LinfBall(0.1), by=PGD(steps=3, step_size=0.05))
    for step in range(120):
        x, y = batches.batch(step)
        optimizer.zero_grad()
        rho(model, x, y).value.mean().backward()
        optimizer.step()
    model.eval()
    x, y, ids = mini.examples("test", 48)
    right = (model(x).argmax(dim=1) == y).nonzero()[:, 0]
    x, y, ids = x[right], y[right], ids[right]

    protocol = strict(paper("fashion-mini"))
    ours = torch.ones(len(x), dtype=torch.bool)
    for attack in prediction_attacks(protocol, model):
        found = attack(x, y, ids=ids.tolist())
        assert (found - x).abs().max() <= protocol.eps + 1e-6
        ours &= model(found).argmax(dim=1) == y
    theirs = torchattacks.AutoAttack(model, eps=protocol.eps, n_classes=10, seed=0)(x, y)
    robust = model(theirs).argmax(dim=1) == y
    assert 0 < int(robust.sum()) < len(x), "the model must be neither helpless nor invincible"
    assert int(ours.sum()) <= int(robust.sum()) + 1, f"{int(ours.sum())} survive ours, {int(robust.sum())} AutoAttack"

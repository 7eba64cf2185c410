"""The attack that a gallery shows: from which start, and by compiled passes."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from evaluation_fixtures import IG, TOY, toy_case
from robattr.engine.compiled import traced
from robattr.evaluation.gallery_frames import frames
from robattr.evaluation.suite import attribution_attacks


def test_an_attack_that_does_not_leave_the_image_is_shown_from_the_next_restart() -> None:
    """The top k pixels carry all the attribution: J is at its maximum, and its gradient is exactly 0 here."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 2, bias=False))
    nn.init.zeros_(net[1].weight)
    net[1].weight.data[0] = 0.5
    x = torch.zeros(2, 1, 6, 6)
    x[:, :, 2, 1:3] = 1.0
    y = torch.zeros(2).long()
    attack = attribution_attacks(TOY, net, IG, images=True)[0]
    with torch.no_grad():
        clean, label = attack.map_and_label(x, y)
    rows = [(5, 0), (9, 0)]
    moved = [step.x for step in attack.iterates(x, y, clean, label, start=attack.starts(x, rows), rows=rows)]
    torch.testing.assert_close(moved[-1], x, rtol=0, atol=0)
    records = [{"id": i, "label": 0, "attack": 0, "repeat": 0} for i, _ in rows]
    shown = frames([attack], x, y, records, protocol=TOY)
    assert (shown.perturbed[:, -1] != shown.image).any(axis=(1, 2, 3)).all()
    assert (shown.kendall[:, -1] < 1).all()


def test_compiled_passes_show_the_same_walk(monkeypatch) -> None:
    """They have a fixed number of rows; the examples of a gallery are fewer, or come in parts."""
    monkeypatch.setattr("robattr.engine.compiled.inductor", traced)
    net, x, y = toy_case()
    records = [{"id": b, "label": int(y[b]), "attack": 0, "repeat": b % 2} for b in range(5)]
    eager, compiled = (
        frames(attribution_attacks(TOY, net, IG, images=True, batch=batch), x[:5], y[:5], records, protocol=TOY)
        for batch in (None, 2)
    )
    for key in ("id", "perturbed", "kept"):
        np.testing.assert_array_equal(getattr(eager, key), getattr(compiled, key))
    for key in ("before", "after", "topk", "kendall"):
        np.testing.assert_allclose(getattr(eager, key), getattr(compiled, key), atol=2e-3)

"""Which examples a gallery shows, and from which start."""

from __future__ import annotations

import torch
from torch import nn

from evaluation_fixtures import IG, TOY
from robattr.evaluation.gallery import choose, frames
from robattr.evaluation.protocol_attacks import attribution_attacks


def test_galleries_of_different_models_share_their_first_examples() -> None:
    def of(kendalls: list[float]) -> list[dict[str, object]]:
        return [{"id": i, "kept": k >= 0 or None, "kendall": k} for i, k in enumerate(kendalls)]

    one, other = of([0.9, -1, 0.8, 0.7, 0.2, 0.1, 0.6]), of([0.1, 0.2, 0.3, 0.9, 0.8, 0.7, -1])
    assert [r["id"] for r in choose(one, first=4, worst=1)] == [0, 2, 3, 5]
    assert [r["id"] for r in choose(other, first=4, worst=1)] == [0, 1, 2, 3, 5]


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
    arrays = frames([attack], x, y, records, protocol=TOY)
    assert (arrays["perturbed"][:, -1] != arrays["image"]).any(axis=(1, 2, 3)).all()
    assert (arrays["kendall"][:, -1] < 1).all()

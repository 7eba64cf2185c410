"""The precision of an audit: reduced only where the scores of the user's examples stay the same."""

from __future__ import annotations

import re
from math import inf

import pytest
import torch
from torch import Tensor, nn

from nets import cancelling
from robattr import audit
from robattr.attacks import IFIA, AttributionMap, from_callable, integrated_gradients, simple_gradient
from robattr.auditing import arithmetic
from robattr.auditing.arithmetic import Agreement, Shown, agreement, choose, gained, shown, under_noise
from robattr.errors import InvalidInput
from robattr.evaluation import scaled

MAPS = [integrated_gradients(4), simple_gradient()]
PROTOCOL = scaled("", pixels=64, bounds=(0.0, 1.0), eps=0.1)


def wide() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.Softplus(), nn.Conv2d(16, 16, 3), nn.Softplus(), nn.Flatten(), nn.Linear(256, 3)
    )


@pytest.fixture
def images() -> tuple[Tensor, Tensor]:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3


def test_agreement_is_that_of_the_scores_under_noise(images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    net, noisy_x = wide(), under_noise(x, eps=0.1, bounds=(0.0, 1.0))

    def between(map: AttributionMap, name: str) -> Agreement:
        return agreement(*(shown(net, map, x, noisy_x, y, each) for each in ("fp32", name)))

    same = between(MAPS[0], "fp32")
    assert (same.kept, same.topk, same.correlation) == (1.0, 0.0, 0.0)
    seen: list[Tensor] = []

    def turned(model: object, z: Tensor, y: Tensor) -> Tensor:
        """0 … 63; of a noisy image in reduced precision turned by a place, so that one of the top 6 is another."""
        seen.append(z)
        low = torch.is_autocast_enabled("cpu") and not torch.equal(z, x)
        return torch.arange(64.0).roll(int(low)).view(1, 1, 8, 8).expand_as(z)

    low = between(from_callable(turned), "bf16")
    assert low.kept == 1.0
    assert low.topk == pytest.approx(-1 / 6)
    assert low.correlation == pytest.approx(-4 * 63 / (64 * 63))  # the 63 pairs with the largest are turned round
    assert low.within(0.17)
    assert not low.within(0.16)
    assert not Agreement(1.0, 0.0, float("nan")).within(1.0)
    assert not Agreement(1.0, float("nan"), 0.0).within(1.0)
    (noisy,) = {tuple(z.flatten().tolist()) for z in seen if not torch.equal(z, x)}  # the same in both precisions
    far = (torch.tensor(noisy).view_as(x) - x).abs()
    inside = (x > 0.1) & (x < 0.9)
    torch.testing.assert_close(far[inside], torch.full_like(far[inside], 0.1), rtol=0, atol=1e-6)


def test_a_cpu_runs_in_fp32(images: tuple[Tensor, Tensor]) -> None:
    assert choose(wide(), MAPS, *images, protocol=PROTOCOL) == ("fp32", "")


def test_scores_that_change_keep_fp32(images: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "REDUCED", {"cpu": {"bf16": 0.01}})
    name, told = choose(cancelling(64), MAPS, *images, protocol=PROTOCOL)
    assert name == "fp32"
    assert told.startswith("products run in fp32: in bf16 instead of fp32, on the first 6 examples, scores under ")
    monkeypatch.setattr(arithmetic, "REDUCED", {"cpu": {"bf16": 1.0}})
    assert choose(wide(), MAPS[:1], *images, protocol=PROTOCOL)[0] == "bf16"


def test_the_first_precision_that_is_close_enough_is_taken(
    images: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """bf16 may move scores by less than tf32 may; fp32 is looked at once."""
    looked: list[str] = []
    moved = {"fp32": 0, "bf16": 2, "tf32": 1}  # of ten pixels at the top

    def fake(model: nn.Module, map: object, *, x: Tensor, noisy: Tensor, y: Tensor, name: str) -> Shown:
        looked.append(name)
        clean = torch.arange(100.0).expand(len(x), -1)
        return Shown(clean, clean.roll(moved[name], 1))

    monkeypatch.setattr(arithmetic, "shown", fake)
    for allowed, wanted, order in (
        ({"bf16": 0.25, "tf32": 0.25}, "bf16", ["fp32", "bf16"]),
        ({"bf16": 0.15, "tf32": 0.15}, "tf32", ["fp32", "bf16", "tf32"]),
        ({"bf16": 0.05, "tf32": 0.05}, "fp32", ["fp32", "bf16", "tf32"]),
    ):
        monkeypatch.setattr(arithmetic, "REDUCED", {"cpu": allowed})
        name, told = choose(wide(), MAPS[:1], *images, protocol=PROTOCOL)
        assert (name, looked) == (wanted, order)
        assert told.startswith(
            f"products run in {wanted}: in bf16 instead of fp32, on the first 6 examples, scores under"
        )
        assert told.count("; in tf32, on the first 6 examples, scores under") == order.count("tf32")
        looked.clear()


@pytest.mark.parametrize(
    ("moved", "allowed", "wanted", "seen"),
    [
        ([0] * 40, 0.12, "bf16", 8),
        ([2] * 40, 0.12, "fp32", 8),
        ([0, 2] * 4 + [0] * 32, 0.12, "bf16", 16),  # -0.1 ± 0.035, then -0.05 ± 0.025
        ([0, 2] * 20, 0.11, "bf16", 32),  # -0.1 ± 0.018 after 32: the mean decides
        ([0, 2] * 20, 0.09, "fp32", 32),
        ([0, 2] * 2, 0.12, "bf16", 4),  # there are no more
    ],
)
def test_as_many_examples_decide_as_it_takes(
    moved: list[int], allowed: float, wanted: str, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten pixels at the top, bf16 moves so many of each example; x tells which example it is."""

    def fake(model: nn.Module, map: object, *, x: Tensor, noisy: Tensor, y: Tensor, name: str) -> Shown:
        assert len(x) == len(noisy) == len(y) <= 8
        looked.append((name, int(x[0, 0, 0, 0])))
        clean = torch.arange(100.0)
        rows = [clean.roll(moved[int(i)] if name == "bf16" else 0) for i in x[:, 0, 0, 0]]
        return Shown(clean.expand(len(x), -1), torch.stack(rows))

    looked: list[tuple[str, int]] = []
    x = torch.arange(len(moved)).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).double()
    monkeypatch.setattr(arithmetic, "shown", fake)
    monkeypatch.setattr(arithmetic, "REDUCED", {"cpu": {"bf16": allowed}})
    name, told = choose(wide(), MAPS[:1], x, torch.zeros(len(x)).long(), protocol=PROTOCOL)
    assert name == wanted
    assert f"in bf16 instead of fp32, on the first {seen} examples" in told
    assert sorted(looked) == sorted((name, at) for name in ("bf16", "fp32") for at in range(0, seen, 8)), "each once"


def test_one_map_with_scores_does_not_decide() -> None:
    """Of eight maps seven have no order: the next eight are asked, too."""
    clean = torch.arange(100.0, dtype=torch.float64).repeat(8, 1)
    clean[1:] = torch.nan
    same = Shown(clean, clean.roll(1, 1))
    alone = agreement(same, same)
    assert (alone.topk, alone.correlation, alone.errors) == (0.0, 0.0, (inf, inf))
    assert alone.within(0.1)
    assert not alone.settled(0.1)
    assert not agreement(*[Shown(clean * torch.nan, clean)] * 2).within(1.0)


def test_the_gain_of_a_direction(images: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ g·sign(d) / Σ|g|: 1 for the same signs; with the largest of 64 turned round, 1 − 2·max|g| / Σ|g|."""
    x, y = images
    attack = IFIA(wide(), 0.1, 0.02, 4, map=MAPS[0], k=6)
    assert gained(attack, x, y, "fp32") == pytest.approx(1)
    exact = attack.direction(x, y)
    largest = exact.abs() == exact.abs().amax(dim=(1, 2, 3), keepdim=True)
    monkeypatch.setattr(
        IFIA, "direction", lambda self, x, y: torch.where(largest, -exact, exact) if self.directions else exact
    )
    share = exact.abs().amax(dim=(1, 2, 3)) / exact.abs().sum(dim=(1, 2, 3))
    assert gained(attack, x, y, "bf16") == pytest.approx(float((1 - 2 * share).mean()))


def test_an_audit_follows_directions_in_reduced_precision_where_they_lead_as_far(
    images: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first network bf16 keeps the directions, of the second, and of its attack, rounding alone."""
    monkeypatch.setattr(arithmetic, "DIRECTIONS", {"cpu": ("bf16",)})
    x, _ = images

    def precisions(net: nn.Module, asked: str) -> list[str | None]:
        made = audit(
            net, (x, net(x).argmax(1)), protocol="paper", examples=6, steps=2, points=2, device="cpu", precision=asked
        )
        notes = [note for note in made.notes if "directions" in note]
        summary = made.run.evaluations[0].summary
        return [summary["precision"], summary.get("direction_precision"), *notes]

    precision, directions, told = precisions(wide(), "auto")
    assert (precision, directions) == ("fp32", "bf16")
    found = re.fullmatch(
        r"the attack follows directions in bf16: a step gains ([\d.]+)% of what one in fp32 does", str(told)
    )
    assert found is not None
    assert 90 <= float(found[1]) <= 100
    assert precisions(wide(), "fp32") == ["fp32", None]
    assert precisions(cancelling(64), "auto") == ["fp32", None]
    monkeypatch.setattr("robattr.auditing.record.choose", lambda *_, **__: ("bf16", ""))
    assert precisions(wide(), "auto")[:2] == ["bf16", None]  # that of the scores
    assert precisions(cancelling(64), "auto") == ["bf16", "fp32"]


def test_an_audit_says_its_precision(images: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "REDUCED", {"cpu": {"tf32": 0.01}})  # which is fp32 there
    x, _ = images
    net = wide()
    y = net(x).argmax(1)
    found = audit(net, (x, y), protocol="paper", examples=6, steps=2, points=2, device="cpu")
    assert found.run.config["precision"] == "tf32"
    assert found.notes == (
        "products run in tf32: in tf32 instead of fp32, on the first 6 examples, scores under random noise differ by "
        "+0.00 points and +0.0000, and maps keep 100.0% of their top pixels",
    )
    with pytest.raises(InvalidInput, match="unknown precision 'fp23': did you mean 'fp32'"):
        audit(net, (x, y), precision="fp23")

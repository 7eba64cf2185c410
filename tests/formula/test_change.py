"""The algebra of sizes and changes, against arithmetic on their values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nets import mlp
from robattr import IG, Change, Size, clean, combine, frozen, keep_label, l1, l2, margin, soft_margin, total, value_of
from robattr.errors import InvalidInput
from robattr.formula import at_output, cross_entropy, midpoint, power, right
from robattr.formula.network import bind

A = torch.tensor([[1.0, -2.0], [3.0, 0.0]])
FEW = IG(rule=midpoint(3))


@Size
def energy(a: Tensor) -> Tensor:
    return a.square().sum(1)


@pytest.fixture
def batch() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    x = torch.rand(4, 6, dtype=torch.float64)
    return mlp().double(), x, x + 0.3 * torch.rand_like(x), torch.arange(4) % 3


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (energy, [5.0, 9.0]),
        (l1 + 2 * l2, [3 + 2 * 5**0.5, 9.0]),
        (l1 - total, [4.0, 0.0]),
        (sum([l1, total, energy]), [3 - 1 + 5.0, 3 + 3 + 9.0]),
        (l1 / 2, [1.5, 1.5]),
        (-power(l1, 2), [-9.0, -9.0]),
    ],
    ids=repr,
)
def test_sizes_add_and_scale(size: Size, expected: list[float]) -> None:
    torch.testing.assert_close(size(A), torch.tensor(expected))
    torch.testing.assert_close(size(A[:, None, :]), torch.tensor(expected))  # any (B, ...)


def test_equal_compositions_are_equal() -> None:
    """The engine keeps what it compiled by the objective: one that is built again must be the same key."""
    assert (l1 + 2 * energy) @ FEW == (l1 + 2 * energy) @ FEW
    assert hash((l1 / 2) @ FEW) == hash((l1 / 2) @ FEW)
    assert (l1 + 2 * energy) @ FEW != (l1 + 3 * energy) @ FEW


def test_the_loss_at_the_end_of_a_path_costs_no_run_of_its_own(batch: tuple[nn.Module, Tensor, Tensor, Tensor]) -> None:
    module, x, x1, y = batch
    ran: list[int] = []
    module.register_forward_pre_hook(lambda _, inputs: ran.append(len(inputs[0])))
    net = bind(module)
    for rule, rows in ((right(3), 3 + 1), (midpoint(3), 3 + 2)):  # ℓ(x) besides; midpoints leave x' out
        shift, spread = total @ IG(at=at_output), l1 @ IG(rule=rule)
        expected = shift(net, x, x1, y) + 0.1 * spread(net, x, x1, y)
        ran.clear()
        torch.testing.assert_close((shift + 0.1 * spread)(net, x, x1, y), expected)
        assert sum(ran) == rows * len(x)


def test_changes_add_and_scale(batch: tuple[nn.Module, Tensor, Tensor, Tensor]) -> None:
    d, e = energy @ FEW, l1 @ FEW
    d_value, e_value = d(*batch), e(*batch)
    for change, expected in (
        (sum([d, e, d]), 2 * d_value + e_value),
        (d / 4 - 2 * e, d_value / 4 - 2 * e_value),
        ((energy + 3 * l1) @ FEW, d_value + 3 * e_value),
        (combine(torch.maximum, d, e), torch.maximum(d_value, e_value)),
        (soft_margin(d, e), torch.log1p(torch.exp(d_value - e_value))),
    ):
        torch.testing.assert_close(change(*batch), expected)


def test_values_of_scalars(batch: tuple[nn.Module, Tensor, Tensor, Tensor]) -> None:
    net, x, x1, y = batch
    loss = value_of(cross_entropy)
    torch.testing.assert_close(loss(net, x, x1, y), F.cross_entropy(net(x1), y, reduction="none"))
    torch.testing.assert_close(clean(loss)(net, x, x1, y), F.cross_entropy(net(x), y, reduction="none"))
    assert not frozen(loss)(net, x, x1, y).requires_grad
    kept = keep_label(net, x, x1, y)
    right = net(x1).argmax(1) == y
    assert torch.equal(kept == 0, right)
    torch.testing.assert_close(kept[~right], -margin(net, x1, y)[~right])


def test_the_size_of_a_difference(batch: tuple[nn.Module, Tensor, Tensor, Tensor]) -> None:
    net, x, x1, y = batch

    def here(model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return x1

    torch.testing.assert_close((l1 @ (here, clean(here)))(net, x, x1, y), (x1 - x).abs().sum(1))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: l1 @ 3, "expects an attribution such as IG"),
        (lambda: l1 @ (FEW, 3), "pair"),
        (lambda: l1 + 1, "such as l1 \\+ 2 \\* l2"),
        (lambda: l1 - FEW, "another size"),
        (lambda: "2" * l1, "a finite number"),
        (lambda: l1 / 0, "other than 0"),
        (lambda: l1 @ FEW + 1, "another change, such as l1 @ IG"),
        (lambda: l1 @ FEW - l1, "another change"),
        (lambda: (l1 @ FEW) * (l1 @ FEW), "a finite number, as in 2 "),
        (lambda: (l1 @ FEW) * float("nan"), "finite"),
        (lambda: (l1 @ FEW) / 0, "other than 0"),
        (lambda: Size(3), "a function of a \\(B, n\\) array"),
        (lambda: power(abs, 2), "Size\\(function\\)"),
        (lambda: combine(torch.maximum, l1), "expects changes"),
        (lambda: combine(3), "torch.maximum"),
        (lambda: clean(3), "Gradient"),
        (lambda: value_of(3), "cross_entropy"),
        (lambda: Change.of(3), "function"),
        (lambda: Size(lambda a: a)(A), "one number per example"),
        (lambda: Size(lambda a: 1.0)(A), "got float"),
    ],
)
def test_wrong_operands_say_what_is_expected(wrong, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        wrong()


def test_maps_of_two_shapes_are_not_compared(batch: tuple[nn.Module, Tensor, Tensor, Tensor]) -> None:
    def here(model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return x1

    def half(model, x: Tensor, x1: Tensor, y: Tensor) -> Tensor:
        return x1[:, :3]

    with pytest.raises(InvalidInput, match="reference of the map's shape"):
        (l1 @ (here, half))(*batch)

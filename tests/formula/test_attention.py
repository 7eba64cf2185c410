"""Attention with aligned rows is torch's, with its first and second derivatives, and takes its place on a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from robattr.formula.attention import ALIGNED, aligned_attention, differentiated
from robattr.formula.convolution import custom_derivatives


@pytest.mark.parametrize(("n", "m"), [(5, 5), (8, 3), (13, 16), (1, 9)])
def test_aligned_attention_is_attention(n: int, m: int) -> None:
    draw = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(2, 3, rows, 4, generator=draw, dtype=torch.float64).requires_grad_() for rows in (n, m, m))
    weight = torch.randn(2, 3, n, 4, generator=draw, dtype=torch.float64)

    def derivatives(out: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad((out * weight).sum(), (q, k, v), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (q, k, v))
        return out, *first, *second

    with sdpa_kernel(SDPBackend.MATH):
        theirs = derivatives(F.scaled_dot_product_attention(q, k, v, scale=0.3))
    for mine, other in zip(derivatives(aligned_attention(q, k, v, 0.3)), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


class Products(TorchDispatchMode):
    """The last two sizes of the operands of batched products."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bmm.default:
            self.sizes |= {size for operand in args[:2] for size in operand.shape[-2:]}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "once", "aligned"), [("meta", False, True), ("meta", True, False), ("cpu", False, False)]
)
def test_products_are_aligned_where_second_derivatives_follow(kind: str, once: bool, aligned: bool) -> None:
    """Device meta computes shapes alone, and stands for a GPU."""
    q, k, v = (torch.rand(2, 3, 13, 16, device=kind, requires_grad=True) for _ in range(3))
    with differentiated(once=once), custom_derivatives(), Products() as products:
        out = F.scaled_dot_product_attention(q, k, v)
        torch.autograd.grad(out.sum(), q, create_graph=True)
    assert out.shape == q.shape
    if not once:
        assert products.sizes
    assert all(size % ALIGNED == 0 for size in products.sizes) == (aligned or not products.sizes)


def test_masked_attention_is_left_to_torch() -> None:
    q, k, v = (torch.rand(1, 1, 5, 8, device="meta", requires_grad=True) for _ in range(3))
    with differentiated(once=False), custom_derivatives(), Products() as products:
        F.scaled_dot_product_attention(q, k, v, is_causal=True)
        F.scaled_dot_product_attention(q, k, v, torch.ones(5, 5, dtype=torch.bool, device="meta"))
    assert 5 in products.sizes


FORMS: dict[str, dict[str, bool]] = {
    "batch first": {"batch_first": True},
    "tokens first": {"batch_first": False},
    "without biases": {"bias": False},
}


@pytest.mark.parametrize("form", FORMS)
def test_self_attention_is_torchs(form: str) -> None:
    """Values, first and second derivatives, of the layer that encoders of torch and torchvision are made of."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, **FORMS[form]).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    operands = (x, *layer.parameters())

    def derivatives() -> tuple[Tensor, ...]:
        out, weights = layer(x, x, x, need_weights=False)
        assert weights is None
        first = torch.autograd.grad(out.sin().sum(), operands, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), operands)
        return out, *first, *second

    with differentiated(once=False):
        theirs = derivatives()
        with custom_derivatives():
            ours = derivatives()
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_products_of_self_attention_are_aligned() -> None:
    """torch computes the layer as a whole, which would keep its products from the replacement."""
    layer = nn.MultiheadAttention(16, 2, batch_first=True, device="meta")
    x = torch.rand(2, 13, 16, device="meta", requires_grad=True)
    with differentiated(once=False), custom_derivatives(), Products() as products:
        torch.autograd.grad(layer(x, x, x, need_weights=False)[0].sum(), x, create_graph=True)
    assert products.sizes
    assert all(size % ALIGNED == 0 for size in products.sizes)


@pytest.mark.parametrize("what", ["weights", "key mask", "mask", "causal", "other keys", "dropout", "extra keys"])
def test_other_forms_of_the_layer_are_left_to_torch(what: str) -> None:
    torch.manual_seed(0)
    extra = what == "extra keys"
    layer = nn.MultiheadAttention(8, 2, dropout=0.5 * (what == "dropout"), add_bias_kv=extra, add_zero_attn=extra)
    x = torch.randn(5, 3, 8, requires_grad=True)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    asked: dict[str, Any] = {
        "weights": {"need_weights": True},
        "key mask": {"key_padding_mask": torch.arange(5).expand(3, 5) > 3},
        "mask": {"attn_mask": later},
        "causal": {"attn_mask": later, "is_causal": True},
    }.get(what, {})
    y = torch.randn(5, 3, 8) if what == "other keys" else x
    found = []
    for mode in (nullcontext(), custom_derivatives()):
        torch.manual_seed(1)
        with mode:
            found.append(layer(x, y, y, **({"need_weights": False} | asked)))
    (theirs, weights), (ours, other_weights) = found
    assert torch.equal(ours, theirs)
    assert (weights is None) == (other_weights is None) == (what != "weights")

"""Equal formulas of pairs of layers, whose first result generated code need not store: in bf16 on a GPU.

ReLU and a max-pool whose windows do not overlap are one function: in each window p = max(0, max_j u_j), with a code in
eight bits, the j of the largest element, or `NONE` where p = 0. Its derivatives of every order are

    Scatter(g, code)   g at the element that the code names, 0 at the others
    Select(v, code)    the element of v that the code names, 0 where it names none

and each of the two is the derivative of the other. Max-pools behind anything else have no window without an element.

A linear layer behind an image that is flattened, with channels last, reads the image as it lies, (h, w, c), and has its
weights permuted instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from robattr.engine import forms
from robattr.formula.convolution import Replaced, applied, each_axis

NONE = -1


class Pool(torch.autograd.Function):
    """p = max_j u_j in each window, or max(0, max_j u_j) if `rectified`."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, window: list[int], rectified: bool) -> Tensor:
        elements = _elements(u, window)
        p = reduce(torch.maximum, elements)
        p = p.relu() if rectified else p
        # Comparisons with p: of a running maximum the compiler would store every intermediate one.
        code = torch.full_like(p, len(elements) - 1, dtype=torch.int8)
        for j in reversed(range(len(elements) - 1)):
            code = torch.where(elements[j] == p, _int8(j, u), code)
        code = torch.where(p == 0, _int8(NONE, u), code) if rectified else code
        ctx.save_for_backward(code)
        ctx.window = window
        return p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return applied(Scatter, g, *ctx.saved_tensors, ctx.window), None, None


class Scatter(torch.autograd.Function):
    """g at the element of each window that the code names, with channels last."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, code: Tensor, window: list[int]) -> Tensor:
        ctx.save_for_backward(code)
        ctx.window, (n, c, h, w) = window, g.shape
        row, column = (torch.arange(size, dtype=torch.int8, device=g.device) for size in window)
        place = window[1] * row[:, None, None, None] + column[:, None]

        def in_windows(t: Tensor) -> Tensor:
            return t.permute(0, 2, 3, 1)[:, :, None, :, None]

        out = torch.where(in_windows(code) == place, in_windows(g), 0)
        return out.reshape(n, h * window[0], w * window[1], c).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        return applied(Select, v, *ctx.saved_tensors, ctx.window), None, None


class Select(torch.autograd.Function):
    """The element of each window of v that the code names."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, code: Tensor, window: list[int]) -> Tensor:
        ctx.save_for_backward(code)
        ctx.window, out = window, v.new_zeros(())
        for j, element in reversed([*enumerate(_elements(v, window))]):
            out = torch.where(code == j, element, out)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return applied(Scatter, g, *ctx.saved_tensors, ctx.window), None, None


class Seen(NamedTuple):
    """What a layer was given, and how often it and the result had been changed in place."""

    given: Tensor
    versions: tuple[int, int]


class LayerPairs(Replaced):
    """While active, pairs of layers whose tensors `forms` apply to are the functions above."""

    def __init__(self) -> None:
        super().__init__(
            {
                **dict.fromkeys((F.relu, torch.relu, Tensor.relu), self._relu),
                **dict.fromkeys((F.max_pool2d, torch.max_pool2d), self._max_pool),
                **dict.fromkeys((torch.flatten, Tensor.flatten), self._flatten),
                F.linear: self._linear,
            }
        )
        self._rectified, self._flattened = WeakTensorKeyDictionary(), WeakTensorKeyDictionary()

    def _relu(self, input: Tensor, inplace: bool = False) -> Tensor | None:
        if inplace or input.dim() != 4 or not forms.applies(input):
            return None
        return _remembered(self._rectified, torch.relu, input)

    def _max_pool(
        self, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Tensor | None:  # fmt: skip
        if return_indices or input.dim() != 4 or not forms.applies(input):
            return None
        window = each_axis(kernel_size, 2)
        apart = stride in (None, [], ()) or each_axis(stride, 2) == window
        whole = not any(size % by for size, by in zip(input.shape[2:], window, strict=True))
        plain = not any(each_axis(padding, 2)) and {*each_axis(dilation, 2)} == {1}
        if not (apart and whole and plain) or window[0] * window[1] > torch.iinfo(torch.int8).max:
            return None
        before = _given_for(self._rectified, input)
        return applied(Pool, input, window, False) if before is None else applied(Pool, before, window, True)

    def _flatten(self, input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor | None:
        last = input.dim() == 4 and input.is_contiguous(memory_format=torch.channels_last)
        if not last or input.is_contiguous() or start_dim != 1 or end_dim not in (-1, 3) or not forms.applies(input):
            return None
        return _remembered(self._flattened, lambda t: t.flatten(1), input)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        before = _given_for(self._flattened, input)
        if before is None or weight.dim() != 2:
            return None
        permuted = weight.view(-1, *before.shape[1:]).permute(0, 2, 3, 1).flatten(1)
        return F.linear(before.permute(0, 2, 3, 1).flatten(1), permuted, bias)


def _remembered(seen: WeakTensorKeyDictionary, layer: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
    out = layer(given)
    seen[out] = Seen(given, (given._version, out._version))
    return out


def _given_for(seen: WeakTensorKeyDictionary, out: Tensor) -> Tensor | None:
    """What the layer that made `out` was given; None where there is none, or where skipping `out` is not the same.

    It is not where either was changed in place since, or `out` is detached or has hooks.
    """
    found = seen.get(out)
    if found is None or found.versions != (found.given._version, out._version):
        return None
    passed_on = out.requires_grad == found.given.requires_grad and not out._backward_hooks  # nobody looks in between
    return found.given if passed_on else None


def _elements(t: Tensor, window: list[int]) -> list[Tensor]:
    """The first elements of all windows, the second ones, …, row by row."""
    high, wide = window
    return [t[:, :, i::high, j::wide] for i in range(high) for j in range(wide)]


def _int8(value: int, like: Tensor) -> Tensor:
    return torch.full((), value, dtype=torch.int8, device=like.device)

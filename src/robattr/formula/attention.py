"""Attention that can be differentiated twice: the plain formula softmax(s·QKᵀ)V, whose kernels have all derivatives.

Fused kernels have none of second order. So they run only where at most one derivative follows (`differentiated`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
ALIGNED = 8
"""Tensor cores read matrices whose rows begin at multiples of 16 bytes: eight numbers of two bytes."""


def differentiated(*, once: bool) -> AbstractContextManager[None]:
    """While open, attention runs the fused kernels, if at most one derivative follows, else the plain formula."""
    found: AbstractContextManager[None] = sdpa_kernel(FUSED if once else SDPBackend.MATH)
    return found


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor | None:  # fmt: skip
    """`aligned_attention` where second derivatives follow, not on a CPU; None where torch's own serves as well."""
    plain = torch.is_grad_enabled() and not torch.backends.cuda.flash_sdp_enabled()
    aligned = query.shape[-2] % ALIGNED == 0 and key.shape[-2] % ALIGNED == 0
    if (
        query.device.type == "cpu"
        or not plain
        or aligned
        or attn_mask is not None
        or dropout_p
        or is_causal
        or enable_gqa
    ):
        return None
    return aligned_attention(query, key, value, query.shape[-1] ** -0.5 if scale is None else scale)


def aligned_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """softmax(s·QKᵀ)V, with zero rows behind Q, K and V up to a multiple of `ALIGNED`, and no weight on those of K.

    A ViT-B/16 has 197 tokens, and products of unaligned matrices took a third of the time of an attack on it.
    """
    n, m = query.shape[-2], key.shape[-2]
    query, key, value = (F.pad(t, (0, 0, 0, -t.shape[-2] % ALIGNED)) for t in (query, key, value))
    scores = (scale * query) @ key.transpose(-2, -1)
    absent = torch.arange(key.shape[-2], device=key.device) >= m
    weights = scores.masked_fill(absent, -torch.inf).softmax(dim=-1).to(value.dtype)
    return (weights @ value)[..., :n, :]

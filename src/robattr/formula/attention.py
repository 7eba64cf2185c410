"""Attention that can be differentiated twice: the plain formula softmax(s·QKᵀ)V, whose kernels have all derivatives.

Fused kernels have none of second order. So they run only where at most one derivative follows (`differentiated`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

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


def self_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, heads: int, in_weight: Tensor | None,
    in_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_weight: Tensor, out_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False, **rest: Any,
) -> tuple[Tensor, None] | None:  # fmt: skip
    """softmax(s·QKᵀ)V W_outᵀ, (Q, K, V) = X W_inᵀ, X (n, B, E), in the place of F.multi_head_attention_forward.

    torch computes the latter as a whole, and `attention` has no part in it. None for masks, dropout and other forms.
    """
    if (
        not isinstance(query, Tensor)
        or not (query is key is value and query.dim() == 3)
        or in_weight is None
        or any(given is not None for given in (bias_k, bias_v, key_padding_mask, attn_mask, *_given(rest)))
        or add_zero_attn
        or (training and dropout_p)
        or need_weights
        or use_separate_proj_weight
    ):
        return None
    n, batch, _ = query.shape
    q, k, v = F.linear(query, in_weight, in_bias).view(n, batch, 3, heads, -1).permute(2, 1, 3, 0, 4)
    found = attention(q, k, v)
    found = F.scaled_dot_product_attention(q, k, v) if found is None else found
    return F.linear(found.permute(2, 0, 1, 3).reshape(n, batch, embed_dim), out_weight, out_bias), None


def _given(rest: dict[str, Any]) -> list[Any]:
    """The further forms that a call asks for; how weights that are not needed would be averaged is none."""
    return [value for name, value in rest.items() if name != "average_attn_weights" and value is not False]


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

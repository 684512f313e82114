"""`nn.MultiheadAttention`, taken apart into projections that an engine can record.

    q = query Wq^T + bq,  k = key Wk^T + bk,  v = value Wv^T + bv
    out = softmax(q k^T / sqrt(head size) + mask) v Wo^T + bo

The plain module reads its parameters inside one fused function, so its output-gradient alone would
not give per-sample gradients cheaply. Here each projection is one recorded linear operation, and
the dropout mask of the attention weights is drawn once, as in the plain module.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.core.contract import UnsupportedModel
from winsor.gradients.layers.layer import RecordedLinear


def attention_forward(
    module: nn.MultiheadAttention, linear: RecordedLinear, *args: Any, **kwargs: Any
) -> Any:
    """Run `module.forward` with recorded projections."""
    return _forward(module, linear, *args, **kwargs)


def _forward(
    module: nn.MultiheadAttention,
    linear: RecordedLinear,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    _refuse(module, query)
    same = key is query and value is query
    if not module.batch_first:
        query = query.transpose(0, 1)
        key, value = (query, query) if same else (key.transpose(0, 1), value.transpose(0, 1))
    q, k, v = _project(module, linear, query, key, value, same)
    heads = module.num_heads
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))  # (n, h, T, d/h)
    mask = _mask(attn_mask, key_padding_mask, len(query), heads, q.dtype, is_causal, (q, k))
    out, weights = _attend(q, k, v, mask, module.dropout if module.training else 0.0, need_weights)
    out = linear(out.transpose(1, 2).flatten(2), "out_proj.weight", "out_proj.bias")
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return (out if module.batch_first else out.transpose(0, 1)), weights


def _refuse(module: nn.MultiheadAttention, query: Tensor) -> None:
    if query.dim() != 3:
        raise UnsupportedModel(
            "the query of MultiheadAttention must be (batch, length, features) or, without "
            f"batch_first, (length, batch, features). Got {query.dim()} dimensions instead."
        )
    if module.bias_k is not None or module.add_zero_attn:
        raise UnsupportedModel(
            "MultiheadAttention must not use add_bias_kv or add_zero_attn: no engine but the loop "
            'serves them. Build it without, or use engine="loop".'
        )


def _project(
    module: nn.MultiheadAttention,
    linear: RecordedLinear,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    same: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    bias = "in_proj_bias" if module.in_proj_bias is not None else None
    e = module.embed_dim
    if module._qkv_same_embed_dim and same:
        q, k, v = linear(query, "in_proj_weight", bias).split(e, dim=-1)
        return q, k, v
    weights = ("in_proj_weight",) * 3
    if not module._qkv_same_embed_dim:
        weights = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    q, k, v = (
        linear(x, weight, bias, (i * e, (i + 1) * e))
        for i, (x, weight) in enumerate(zip((query, key, value), weights, strict=True))
    )
    return q, k, v


def _mask(
    attn_mask: Tensor | None,
    padding: Tensor | None,
    n: int,
    heads: int,
    dtype: torch.dtype,
    is_causal: bool,
    qk: tuple[Tensor, Tensor],
) -> Tensor | None:
    """Return one additive mask that broadcasts over (n, heads, T, S)."""
    if is_causal and attn_mask is None:
        t, s = qk[0].shape[2], qk[1].shape[2]
        attn_mask = torch.ones(t, s, dtype=torch.bool, device=qk[0].device).triu(1)
    mask = None if attn_mask is None else _additive(attn_mask, dtype)
    if mask is not None and mask.dim() == 3:
        mask = mask.view(n, heads, *mask.shape[1:])
    if padding is not None:
        extra = _additive(padding, dtype)[:, None, None, :]
        mask = extra if mask is None else mask + extra
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype is torch.bool:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
    return mask.to(dtype)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    if not need_weights:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout), None
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    weights = F.dropout(weights, dropout) if dropout > 0 else weights
    return weights @ v, weights

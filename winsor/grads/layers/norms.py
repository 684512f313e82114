"""Normalisation layers: rows of size (channels,), so they are simply formed.

    out = gamma xhat + beta,    G_gamma = sum_places e xhat,    G_beta = sum_places e

GroupNorm and InstanceNorm: the library's backward kernel already has these sums per row before it
adds them up. Read the batch as one row with n * channels channels and n * groups groups, and it
returns them per row, together with the input-gradient, at the cost of plain training.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.grads.layers.layer import Layer, Named, as_dtype
from winsor.grads.pieces import Rows
from winsor.grads.tape import Call


class LayerNormLayer(Layer):
    kind = "layer norm"
    serves: ClassVar[tuple[type[nn.Module], ...]] = (nn.LayerNorm,)

    def forward(self, input: Tensor) -> Tensor:
        m = self.module
        weight, bias = self.tape.detached(self.module)
        out = F.layer_norm(input, m.normalized_shape, weight, bias, m.eps)
        return self.tape.record(self, out, *([input] if self.weight is not None else []))

    def normalised(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.module.normalized_shape, None, None, self.module.eps)

    def pieces(self, call: Call, g: Tensor) -> Named:
        g = as_dtype(g, self.dtype)
        own = len(self.module.normalized_shape)
        if g.dim() <= own:
            raise self.unbatched(g)
        places = tuple(range(1, g.dim() - own))
        if self.weight is not None:
            product = g * self.normalised(as_dtype(call.inputs[0], self.dtype))
            yield self.weight, Rows(product.sum(places) if places else product)
        if self.bias is not None:
            yield self.bias, Rows(g.sum(places) if places else g)


class RMSNormLayer(LayerNormLayer):
    kind = "RMS norm"
    serves = (nn.RMSNorm,)

    def forward(self, x: Tensor) -> Tensor:
        m = self.module
        out = F.rms_norm(x, m.normalized_shape, m._parameters["weight"].detach(), m.eps)
        return self.tape.record(self, out, x)

    def normalised(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.module.normalized_shape, None, self.module.eps)


class GroupNormLayer(Layer):
    kind = "group norm"
    serves: ClassVar[tuple[type[nn.Module], ...]] = (nn.GroupNorm,)

    def groups(self) -> int:
        return int(self.module.num_groups)

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.tape.detached(self.module)
        x = as_dtype(input, self.dtype)
        if not self.tape.verified:
            self.tape.note_input(x)
        anchor = torch.empty(0, requires_grad=True)
        return _GroupNorm.apply(x, anchor, self, weight, bias)

    def pieces(self, call: Call, g: Tensor) -> Named:
        rows_of_weight, rows_of_bias = call.note
        if self.weight is not None:
            yield self.weight, Rows(rows_of_weight)
        if self.bias is not None:
            yield self.bias, Rows(rows_of_bias)


class InstanceNormLayer(GroupNormLayer):
    """One group per channel."""

    kind = "instance norm"
    serves = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        return isinstance(module, cls.serves) and not module.track_running_stats

    def groups(self) -> int:
        return int(self.module.num_features)


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        layer: GroupNormLayer,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        n, channels = x.shape[:2]
        groups, x = layer.groups(), x.contiguous()
        places = x[0, 0].numel() if n else 0
        out, mean, rstd = torch.native_group_norm(
            x, weight, bias, n, channels, places, groups, layer.module.eps
        )
        ctx.save_for_backward(x, mean, rstd)
        ctx.layer, ctx.weight = layer, weight
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, rstd = ctx.saved_tensors
        layer, weight = ctx.layer, ctx.weight
        n, channels = x.shape[:2]
        dx, for_weight, for_bias = torch.ops.aten.native_group_norm_backward(
            g.contiguous(),
            x,
            mean.view(1, -1),
            rstd.view(1, -1),
            None if weight is None else weight.repeat(n),
            1,
            n * channels,
            x[0, 0].numel(),
            n * layer.groups(),
            (ctx.needs_input_grad[0], True, True),
        )
        call = Call(layer, (), note=(for_weight.view(n, channels), for_bias.view(n, channels)))
        layer.tape.deliver(call, 0, g)
        return dx, None, None, None, None

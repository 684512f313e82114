"""Normalisation layers: rows of size (channels,), so they are simply formed.

    out = gamma xhat + beta,    G_gamma = sum_places e xhat,    G_beta = sum_places e

GroupNorm and InstanceNorm: the library's backward kernel already has these sums per row before it
adds them up. Read the batch as one row with n * channels channels and n * groups groups, and it
returns them per row, together with the input-gradient, at the cost of plain training.

LayerNorm: that kernel adds up all places it is given, so it is given one row after the other where
rows are long; short ones are formed by the formula, in one go.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.gradients.arithmetic import sum_of_places
from winsor.gradients.layers.layer import Layer, Named, as_dtype
from winsor.gradients.parameter_rows import Rows
from winsor.gradients.recorder import Call

LONG_ROW = 1 << 14
"""Numbers in a row from which on a call of the kernel per row costs less than the formula: it reads
each number once and writes none (16 rows of 128 x 256: 0.8 instead of 1.4 ms)."""

MANY_PLACES = 1 << 12
"""The kernel adds up places one after the other in float32; more are left to the formula."""

_one_row = torch.ops.aten.native_layer_norm_backward.default


class LayerNormLayer(Layer):
    """`nn.LayerNorm`: rows of scale and shift, added up over places."""

    kind = "layer norm"
    serves: ClassVar[tuple[type[nn.Module], ...]] = (nn.LayerNorm,)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise with detached parameters and record the call."""
        m = self.module
        weight, bias = self.recorder.detached(self.module)
        if self.weight is not None and self._in_long_rows(input):
            made = torch.native_layer_norm(input, m.normalized_shape, weight, bias, m.eps)
            note = made[1].detach(), made[2].detach()
            return self.recorder.record(self, made[0], input, note=note)
        out = F.layer_norm(input, m.normalized_shape, weight, bias, m.eps)
        return self.recorder.record(self, out, *([input] if self.weight is not None else []))

    def _in_long_rows(self, x: Tensor) -> bool:
        own = len(self.module.normalized_shape)
        if x.dim() <= 1 + own or x.dtype is not self.dtype or x.device.type != "cpu":
            return False
        places = x.shape[1:-own].numel()
        return places <= MANY_PLACES and places * x.shape[-own:].numel() >= LONG_ROW

    def _row_by_row(self, x: Tensor, g: Tensor, mean: Tensor, rstd: Tensor) -> list[Tensor]:
        """Return [(n, features) of the scale, (n, features) of the shift]."""
        shape, (weight, bias) = self.module.normalized_shape, self.recorder.detached(self.module)
        each = zip(*(part.unbind(0) for part in (g, x, mean, rstd)), strict=True)
        rows = [
            _one_row(g, x, shape, m, r, weight, bias, [False, True, bias is not None])[1:]
            for g, x, m, r in each
        ]
        return [torch.stack(part) for part in zip(*rows, strict=True) if part[0] is not None]

    def normalised(self, x: Tensor) -> Tensor:
        """Normalise ``x`` without scale and shift."""
        return F.layer_norm(x, self.module.normalized_shape, None, None, self.module.eps)

    def pieces(self, call: Call, g: Tensor) -> Named:
        """Yield rows of scale and shift from output-gradient ``g``."""
        g = as_dtype(g, self.dtype)
        own = len(self.module.normalized_shape)
        if g.dim() <= own:
            raise self.unbatched(g)
        if call.note is not None and g.shape == call.inputs[0].shape:
            rows = self._row_by_row(call.inputs[0].detach(), g, *call.note)
            names = (self.weight, self.bias)[: len(rows)]
            yield from ((name, Rows(r)) for name, r in zip(names, rows, strict=True) if name)
            return
        places, shape = g.dim() > 1 + own, self.module.normalized_shape

        def added(x: Tensor) -> Tensor:
            if not places:
                return x
            return sum_of_places(x.reshape(len(x), -1, math.prod(shape))).view(-1, *shape)

        if self.weight is not None:
            normal = self.normalised(as_dtype(call.inputs[0], self.dtype))
            yield self.weight, Rows(added(g.double() * normal.double()))
        if self.bias is not None:
            yield self.bias, Rows(added(g))


class RMSNormLayer(LayerNormLayer):
    """`nn.RMSNorm`: a scale without a shift."""

    kind = "RMS norm"
    serves = (nn.RMSNorm,)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise with a detached scale and record the call."""
        m = self.module
        out = F.rms_norm(x, m.normalized_shape, m._parameters["weight"].detach(), m.eps)
        return self.recorder.record(self, out, x)

    def normalised(self, x: Tensor) -> Tensor:
        """Normalise ``x`` without the scale."""
        return F.rms_norm(x, self.module.normalized_shape, None, self.module.eps)


class GroupNormLayer(Layer):
    """`nn.GroupNorm`: rows of scale and shift come out of its backward pass."""

    kind = "group norm"
    serves: ClassVar[tuple[type[nn.Module], ...]] = (nn.GroupNorm,)

    def groups(self) -> int:
        """Number of groups of channels."""
        return int(self.module.num_groups)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise with detached parameters; the backward pass delivers rows."""
        weight, bias = self.recorder.detached(self.module)
        x = as_dtype(input, self.dtype)
        if not self.recorder.verified:
            self.recorder.note_input(x)
        anchor = torch.empty(0, requires_grad=True)
        return _GroupNorm.apply(x, anchor, self, weight, bias)

    def pieces(self, call: Call, g: Tensor) -> Named:
        """Yield the rows that the backward pass found."""
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
        """Accept instance norms that keep no running statistics."""
        return isinstance(module, cls.serves) and not module.track_running_stats

    def groups(self) -> int:
        """Number of channels, each a group of its own."""
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
        layer.recorder.deliver(call, 0, g)
        return dx, None, None, None, None

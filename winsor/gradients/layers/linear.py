"""Linear maps at any number of places: `nn.Linear`, Hugging Face's `Conv1D`, projections.

    out_t = W x_t + b,    G_W = sum_t e_t x_t^T,    G_b = sum_t e_t       (e: output-gradient)

With T = 1 the norm is |e|^2 |x|^2. With more places, either the rows G_W are formed (T out in
multiply-adds, the cost of the weight gradient that plain training computes) and kept, or the two
factors are kept and the norm is a ghost norm (T^2 (out + in)), followed by one contraction.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from winsor.gradients.arithmetic import form_rows, sum_of_places
from winsor.gradients.layers.layer import Layer, Named, Part, Projection, RecordedLinear, as_dtype
from winsor.gradients.parameter_rows import Factors, Outer, ParameterRows, Rows
from winsor.gradients.parameters import Site
from winsor.gradients.recorder import Call, Recorder
from winsor.gradients.row_memory import MAC, TRAFFIC


def costs_of_linear(places: int, out: int, inner: int) -> dict[str, float]:
    """Keep rows, or keep factors and use ghost norms."""
    contraction = MAC * places * out * inner
    ghost = MAC * 0.7 * places * places * (out + inner)  # Gram matrices are symmetric
    rows = contraction + 3 * TRAFFIC * out * inner
    return {"rows": rows, "ghost": contraction + min(ghost, rows)}


class LinearLayer(Layer):
    """`nn.Linear` at one or many places of a row."""

    kind = "linear"
    serves = (nn.Linear,)
    transposed = False
    """True if the weight is stored as (in, out)."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the map with detached parameters and record the call."""
        weight, bias = self.recorder.detached(self.module)
        assert weight is not None
        return self.keep(F.linear(input, weight, bias), input)

    def keep(self, out: Tensor, x: Tensor) -> Tensor:
        """Record the call; the input is needed for the weight's gradient only."""
        return self.recorder.record(self, out, *(() if self.weight is None else (x,)))

    def pieces(self, call: Call, g: Tensor) -> Named:
        """Yield rows or factors of weight and bias from output-gradient ``g``."""
        if g.dtype is not self.dtype:
            g = as_dtype(g, self.dtype)
        if g.dim() == 1:
            raise self.unbatched(g)
        if g.dim() == 2:
            return self.one_place(call, g)
        pieces: list[tuple[str, ParameterRows]] = []
        if self.weight is not None:
            x = as_dtype(call.inputs[0], self.dtype)
            e = self.for_weight(g)
            pieces.append((self.weight, self.many_places(e.flatten(1, -2), x.flatten(1, -2))))
        if self.bias is not None:
            pieces.append((self.bias, Rows(self.for_bias(sum_of_places(g.flatten(1, -2))))))
        return pieces

    def one_place(self, call: Call, g: Tensor) -> Named:
        """Return pieces of a map that was applied once per row."""
        pieces: list[tuple[str, ParameterRows]] = []
        for_bias = self.for_bias(g) if self.bias is not None else None
        e = self.for_weight(g) if self.weight is not None else None
        bias = Rows(for_bias) if for_bias is not None else None
        if e is not None and self.weight is not None:
            x = call.inputs[0]
            left = bias if bias is not None and e is for_bias else Rows(e)
            right = Rows(x if x.dtype is self.dtype else as_dtype(x, self.dtype))
            outer = Outer(right, left) if self.transposed else Outer(left, right)
            pieces.append((self.weight, outer))
        if bias is not None and self.bias is not None:
            pieces.append((self.bias, bias))
        return pieces

    def many_places(self, e: Tensor, x: Tensor) -> ParameterRows:
        """Choose rows or factors of e (n, T, out) and x (n, T, in)."""
        left, right = (x, e) if self.transposed else (e, x)
        places, out, inner = *left.shape[1:], right.shape[2]
        key = (places, out, inner)
        choice = self.plans[key][0] if key in self.plans else self._choose(*key)
        if choice == "rows":
            return Rows(form_rows(left, right).to(left.dtype))
        return Factors(left, right)

    def _choose(self, places: int, out: int, inner: int) -> str:
        costs = costs_of_linear(places, out, inner)
        return self.plan((places, out, inner), out * inner, places * (out + inner), costs)

    def for_weight(self, g: Tensor) -> Tensor:
        """Return the output-gradient as the weight sees it."""
        return g

    def for_bias(self, g: Tensor) -> Tensor:
        """Return the output-gradient as the bias sees it."""
        return g


class TransposedLinearLayer(LinearLayer):
    """Hugging Face's `Conv1D`: a linear map whose weight is stored as (in, out)."""

    kind = "linear (transposed)"
    transposed = True

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Accept any module that is called Conv1D and has ``nf`` outputs."""
        return type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map with the transposed weight and record the call."""
        weight, bias = self.recorder.detached(self.module)
        assert weight is not None
        return self.keep(F.linear(x, weight.T, bias), x)


class ProjectionLayer(LinearLayer):
    """One linear operation inside a module that is taken apart (attention, recurrent)."""

    kind = "projection"

    def __init__(self, projection: Projection, recorder: Recorder) -> None:
        super().__init__(projection.site, recorder)
        self.projection = projection
        self.weight = projection.site.name_of(projection.weight)
        self.bias = projection.site.name_of(projection.bias) if projection.bias else None
        self._weight = _home(self.module, projection.weight)
        self._bias = _home(self.module, projection.bias) if projection.bias else None

    def __str__(self) -> str:
        return str(self.projection)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the projection with detached parameters and record the call."""
        weight, bias = _read(self._weight), _read(self._bias)
        assert weight is not None
        return self.keep(self.projection(weight, bias, input), input)

    def for_weight(self, g: Tensor) -> Tensor:
        """Return the output-gradient, padded to all rows of the fused weight."""
        weight = _read(self._weight)
        assert weight is not None
        return self.projection.padded(g, len(weight))

    def for_bias(self, g: Tensor) -> Tensor:
        """Return the output-gradient, padded to the whole fused bias."""
        bias = _read(self._bias)
        assert bias is not None
        return self.projection.padded(g, len(bias))


def _home(module: nn.Module, relative: str) -> tuple[dict[str, Any], str]:
    inner, _, local = relative.rpartition(".")
    return module.get_submodule(inner)._parameters, local


def _read(home: tuple[dict[str, Any], str] | None) -> Tensor | None:
    return None if home is None else home[0][home[1]].detach()


def recorded_linear(site: Site, recorder: Recorder, known: dict[Any, Layer]) -> RecordedLinear:
    """Record ``x W^T + b`` of one site; layers are made once per projection."""

    def linear(x: Tensor, weight: str, bias: str | None, part: Part | None = None) -> Tensor:
        projection = Projection(site, weight, bias, part)
        layer = known.get(projection)
        if layer is None:
            layer = known[projection] = ProjectionLayer(projection, recorder)
        return layer.forward(x)

    return linear

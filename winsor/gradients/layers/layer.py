"""What a layer file provides: a recorded forward, and the pieces of its per-sample gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from winsor.core.contract import UnsupportedModel
from winsor.gradients.parameter_rows import ParameterRows
from winsor.gradients.parameters import Site
from winsor.gradients.recorder import Call, Recorder

Named = Iterable[tuple[str, ParameterRows]]


class Layer(ABC):
    """One module with parameters, in closed form.

    Subclasses run the module on detached parameters in `forward` (through `Recorder.record`), and
    turn (input, output-gradient) into `pieces`.
    """

    kind: ClassVar[str] = ""
    serves: ClassVar[tuple[type[nn.Module], ...]] = ()

    def __init__(self, site: Site, recorder: Recorder) -> None:
        self.site = site
        self.module: Any = site.module
        self.recorder = recorder
        self.weight = site.name_of("weight")
        self.bias = site.name_of("bias")
        own = [slot.owner._parameters[slot.local] for slot in site.slots]
        self.dtype: torch.dtype = next(p.dtype for p in own if p is not None)
        self.plans: dict[Any, tuple[str, str]] = {}

    def __str__(self) -> str:
        return str(self.site)

    @classmethod
    def matches(cls, module: nn.Module) -> bool:
        """Accept the very forward that this layer knows, with parameters held as usual."""
        return isinstance(module, cls.serves) and any(
            type(module).forward is base.forward for base in cls.serves
        )

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on detached parameters and record the call."""

    @abstractmethod
    def pieces(self, call: Call, g: Tensor) -> Named:
        """Yield (parameter name, rows) for one call and its output-gradient ``g``."""

    def unbatched(self, g: Tensor) -> UnsupportedModel:
        """Build the error for an output without a batch dimension."""
        return UnsupportedModel(
            f"the input of {self} must have the rows of the batch as its first dimension. Got an "
            f"output of shape {tuple(g.shape)} instead. Give the module one row per record."
        )

    def plan(self, key: Any, rows: int, factors: int, costs: dict[str, float]) -> str:
        """Choose for inputs of one shape, once; the choice is kept and shown by `explain`."""
        choice = self.recorder.row_memory.choose(costs, rows, factors)
        shown = ", ".join(f"{name} {cost:.3g}" for name, cost in costs.items())
        self.plans[key] = (choice, shown)
        return choice


def as_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert to ``dtype``: autocast records narrower numbers than the parameters have."""
    return x if x.dtype is dtype else x.to(dtype)


Part = tuple[int, int]
"""First row and one past the last row."""


class RecordedLinear(Protocol):
    """``x W^T + b`` with W and b by their names inside the module.

    ``part`` selects rows of W and entries of b where they hold several projections at once.
    """

    def __call__(
        self, x: Tensor, weight: str, bias: str | None, part: Part | None = None
    ) -> Tensor: ...


@dataclass(frozen=True)
class Projection:
    """One such operation of a site: which parameters, and which part of them."""

    site: Site
    weight: str
    bias: str | None
    part: Part | None = None

    def __str__(self) -> str:
        return f"{self.weight} of {self.site}"

    def __call__(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        if self.part is not None:
            first, last = self.part
            weight = weight[first:last] if len(weight) > last - first else weight
            bias = bias[first:last] if bias is not None and len(bias) > last - first else bias
        return F.linear(x, weight, bias)

    def padded(self, g: Tensor, size: int) -> Tensor:
        """Return the output-gradient as seen by a parameter with ``size`` rows: zero outside the
        part."""
        if self.part is None or size == g.shape[-1]:
            return g
        return F.pad(g, (self.part[0], size - self.part[1]))

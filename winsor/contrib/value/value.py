"""Value clipping: scale each row by a proven bound on its gradient norm instead of the norm itself.

    w_i = min(1, C / G_i),   G_i >= |g_i|,    g = sum_i w_i g_i + N(0, (sigma C)^2 I)

Fang et al. 2023, Algorithm 3, read with f_i. There G_i^2 = beta_1 (f_i - f_lb) + beta_2, the weak
growth condition, with appendix D's beta_1 for ReLU networks: ``Value(C, growth=..., lower=f_lb)``
with a condition that comes with its proof (`growth.py`, `wgc.py`). Without ``growth`` three bounds,
from the paper's to the tightest, all from one forward and one backward pass without a per-sample
gradient:

* ``form="value"``: appendix D with biases, for ReLU (tanh, ...) networks under cross-entropy. From
  the loss value, the norm of the input and the spectral norms of the weights. The loss gradient
  is at most sqrt(2) (1 - exp(-f_i)), which is less than the paper's 2 min(1, sqrt(2 f_i)).
* ``form="forward"``: from the activations and the exact loss gradient. Exact output-gradients
  through what lies above the last convolution (in a perceptron: everything), certified operator
  norms below it.
* ``form="outputs"``, the default: the backward pass of the output-gradients runs first, and the
  weight gradients follow with the weights applied, so nothing is differentiated twice. Each layer
  is bounded from its input and its output-gradient, as these arrive; for a linear layer the bound
  is the norm, and so it is for a normalisation and for most convolutions: those whose gradients,
  row by row, are no larger than input and output-gradient, and those on maps so small that Gram
  matrices are cheap. A model of linear layers alone gets the norms, by the quicker way of `Flat`.

When to use
-----------
For perceptrons and convolutional networks, with GroupNorm or LayerNorm and residual sums, when
per-sample norms are the bottleneck. How tight the bound is decides how much signal is lost (median
G/|g| measured by `experiments/2026-11-value-bounds`): with "outputs" 1.0 for perceptrons, 1.0 to
1.4 for the two-layer CNN and 1.0 to 1.1 for residual networks; with "forward" 1.0, 3 to 40 and
thousands; with "value" 1.3 for a linear model, 2 to 3 for two layers and 30 for five. Where `Flat`
is as fast, prefer it: its bound is exact.

Cost
----
Plain training plus one pass over the activations, and about its memory: what the graph saved is
freed on the way. "forward" adds operator norms of the weights, which are carried from step to step
while they change little.

Guarantee
---------
G_i is an upper bound on |g_i| that depends on row i and the released weights only, so |w_i g_i| is
at most C: one record moves the sum by at most C when it is added or removed and by at most 2C when
it is replaced. That holds for the numbers that are summed: whatever the form, G_i is at least the
bound by "outputs" on what the backward pass kept of each layer, in float64 as the sums are
(`winsor/gradients/arithmetic.py`). A row whose bound is not finite contributes zero. A layer
without a proven bound, tied weights and batch statistics are refused.

Differences from the authors
----------------------------
Algorithm 3 as printed scales every row by the mean loss f(w); then a row with a larger loss is not
bounded, and rows are coupled (`winsor_papers.value.claim` keeps that reading). Appendix D has no
biases, at x = 0 its bound is zero. A declared (beta_1, beta_2) without a proof is refused. A
spectral norm from power iteration would be a lower bound; here it is certified.

References
----------
Fang, Li, Fan, Li: Improved convergence of differential private SGD with gradient clipping, ICLR
2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from winsor.contrib.value import engine  # noqa: F401  (registers the engine these rules need)
from winsor.contrib.value.bounds.network import FORMS, summed_squares
from winsor.contrib.value.bounds.spectral import OperatorNorms
from winsor.contrib.value.growth import Growth
from winsor.contrib.value.view import ForwardView
from winsor.core.checks import choice, positive
from winsor.core.contract import ConfigurationError, Tree
from winsor.gradients.view import Need, View
from winsor.rules.rule import PerSampleRule, State, clip_weights


@dataclass(frozen=True)
class Value(PerSampleRule):
    """Clip each row by a certified bound on its gradient norm: nothing is done per sample.

    ``growth`` clips by a growth condition instead of ``form``, with ``lower`` its f_lb: Algorithm 3
    with its declared inputs, read with f_i (`winsor/contrib/value/growth.py`).
    """

    max_grad_norm: float
    form: str = "outputs"
    growth: Growth | None = None
    lower: float = 0.0
    needs_network = True

    def __post_init__(self) -> None:
        positive("max_grad_norm", self.max_grad_norm)
        choice("form", self.form, sorted(FORMS))
        if not math.isfinite(self.lower):
            raise ConfigurationError(f"lower must be a finite number. Got {self.lower!r} instead.")
        if self.growth is None:
            if self.lower:
                raise ConfigurationError(
                    f"lower must come with a growth condition. Got lower={self.lower!r} and no "
                    "growth instead. Leave it out: the bounds by layers do not need it."
                )
            return
        if self.form != "outputs":
            raise ConfigurationError(
                f"form must be left out where growth is given. Got {self.form!r} instead. A "
                'declared pair takes it in its proof: LayerBounds("value").'
            )
        _ = self.growth.statement  # refuses a condition without a proof

    def __repr__(self) -> str:
        shown = f"max_grad_norm={self.max_grad_norm!r}, form={self.form!r}"
        if self.growth is not None:
            shown = f"max_grad_norm={self.max_grad_norm!r}, growth={self.growth!r}, "
            shown += f"lower={self.lower!r}"
        return f"Value({shown})"

    @property
    def needs(self) -> Need:  # type: ignore[override]
        """For "outputs" the norm of a linear map is its bound: there norms serve as well."""
        needs = Need.FORWARD | Need.LOSSES | Need.WEIGHTED_SUM | Need.NORMS
        exact = self.form == "outputs" and self.growth is None
        return needs | Need.NORMS_WILL_DO if exact else needs

    @property
    def proof(self) -> str:  # type: ignore[override]
        """The argument, with that of the growth condition."""
        reason = "" if self.growth is None else f": {self.growth.statement}"
        return PROOF + reason

    def init(self, parameters: Tree, expected_size: float) -> State:
        """Return an empty memory for operator norms."""
        memory: dict[str, Any] = {}  # norms of past (public) weights, see OperatorNorms
        return {"norms": memory}

    def bounds(self, view: View, state: State) -> Tensor:
        """Return (n,) G_i. Private.

        Planted rows and the oracle engine bring no graph but norms, the tightest of all bounds.
        """
        if isinstance(view, ForwardView):
            return self._squares(view, state).sqrt()
        return view.norms() if self.growth is None else self.growth.bounds_of_rows(view, self.lower)

    def _squares(self, view: ForwardView, state: State) -> Tensor:
        if not view.size:
            return view.losses().double()
        norms = OperatorNorms(state["norms"])
        if self.growth is None:
            found = FORMS[self.form](view, norms)
        else:
            found = self.growth.squares(view, norms, self.lower)
        return torch.maximum(found, summed_squares(view, norms))

    def weights(self, view: View, state: State) -> Tensor:
        """Return min(1, C/G_i) for each row."""
        return clip_weights(self.bounds(view, state), self.max_grad_norm)

    def clipped_norm(self, state: State) -> float:
        """Return C."""
        return self.max_grad_norm


PROOF = (
    "w_i = min(1, C/G_i) with a certified G_i >= |g_i| that depends on row i and public "
    "weights only, so |w_i g_i| <= C (Fang et al. 2023, Alg. 3 with f_i)"
)

EXAMPLES = (Value(1.0), Value(0.1, form="forward"), Value(2.0, form="value"))

"""What the tail plots show, free of any plotting library. `plots.py` draws them.

* `norm_histogram`: where the norms are, and where thresholds cut them.
* `tail_chart`: -log S against the norm on two logarithmic axes. A Weibull tail is a straight line
  of slope 1/theta; a power law bends down. Fitted curve and empirical points.
* `trade_chart`: what a threshold costs in bias and in noise.
* `stability_chart`: Hill, moment and Pickands indices against the number of order statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from winsor.contract import ConfigurationError
from winsor.tails.fit import TailFit
from winsor.tails.points import Floats


@dataclass(frozen=True)
class Line:
    """A curve, or points if ``dots``. ``low`` and ``high`` draw a band behind it."""

    name: str
    x: Floats
    y: Floats
    dots: bool = False
    dashed: bool = False
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class Mark:
    """A vertical line with its label."""

    x: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Everything a renderer needs."""

    title: str
    subtitle: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...] = ()
    bars: tuple[Floats, Floats] | None = None  # edges (m+1,), heights (m,)
    marks: tuple[Mark, ...] = field(default=())
    log_x: bool = True
    log_y: bool = True
    y_range: tuple[float, float] | None = None

    def place(self, x: float) -> float:
        """Where x lies between the left (0) and the right (1) end of what is drawn."""
        ends = [self.bars[0]] if self.bars is not None else [line.x for line in self.lines]
        low, high = min(float(e.min()) for e in ends), max(float(e.max()) for e in ends)
        if self.log_x:
            low, high, x = math.log(low), math.log(high), math.log(x)
        return (x - low) / (high - low)


def _positive(norms: ArrayLike) -> Floats:
    x = np.asarray(norms, dtype=np.float64).ravel()
    x = x[np.isfinite(x) & (x > 0)]
    if x.size == 0:
        raise ConfigurationError("norms must hold positive values. Got none; nothing to draw.")
    return x


def _marks(thresholds: Mapping[str, float] | None) -> tuple[Mark, ...]:
    found = [Mark(float(x), label) for label, x in (thresholds or {}).items()]
    return tuple(sorted(found, key=lambda mark: mark.x))


def norm_histogram(norms: ArrayLike, thresholds: Mapping[str, float] | None = None) -> Chart:
    """Histogram over logarithmic bins; each threshold's label says what share it clips."""
    x = _positive(norms)
    low, high = np.quantile(x, 0.001), x.max()
    edges = np.geomspace(max(low, high * 1e-6), high * (1 + 1e-9), 61)
    heights = np.histogram(x, edges)[0] / x.size * 100
    marks = tuple(
        Mark(mark.x, f"{mark.label} = {mark.x:.3g} (clips {100 * np.mean(x > mark.x):.3g} %)")
        for mark in _marks(thresholds)
    )
    return Chart(
        "Per-sample gradient norms",
        f"{x.size:,} norms, median {np.median(x):.3g}, largest {x.max():.3g}",
        "norm",
        "share of the sample, %",
        bars=(edges, heights),
        marks=marks,
        log_y=False,
        y_range=(0.0, float(heights.max()) * (1.35 if marks else 1.05)),  # room for the labels
    )


def tail_chart(fitted: TailFit, thresholds: Mapping[str, float] | None = None) -> Chart:
    """The Weibull plot with the fitted curve, and the straight line through the same points."""
    points = fitted.points
    rank = np.cumsum(points.weight) - 0.5 * points.weight
    depth = np.log(points.size / rank)
    level = fitted.quantile_levels
    body = (level > 0.02) & (level < 1 - fitted.fraction) & (fitted.quantile_values > 0)
    z = np.linspace(points.threshold, points.z[0] + 0.15 * (points.z[0] - points.threshold), 200)
    x = np.exp(z)
    body_depth = -np.log(1 - level[body])
    lines = [
        Line("body (not fitted)", fitted.quantile_values[body], body_depth, dots=True),
        Line("tail of the sample", np.exp(points.z), depth, dots=True),
        Line(f"fit, θ = {fitted.theta.value:.3g} at the edge", x, fitted.curve.depth(z)),
    ]
    if fitted.is_bent:
        lines.append(Line("Weibull line (no bend)", x, fitted.straight.depth(z), dashed=True))
    return Chart(
        f"Tail plot: {fitted.verdict.tail.value}",
        f"θ = {fitted.theta}, K = {fitted.K}, upper {fitted.fraction:.3g} of {fitted.n:,} norms",
        "norm x",
        "-log P(norm > x)",
        lines=tuple(line for line in lines if line.x.size),
        marks=_marks(thresholds),
    )


@dataclass(frozen=True)
class Trade:
    """Bias and noise of the averaged gradient for a range of thresholds, and the best of them."""

    thresholds: Floats
    bias: Floats
    noise: Floats

    @property
    def total(self) -> Floats:
        return np.sqrt(self.bias**2 + self.noise**2)

    @property
    def best(self) -> float:
        return float(self.thresholds[int(np.argmin(self.total))])


def bias_noise_trade(
    norms: ArrayLike, *, d: int, noise_multiplier: float, batch_size: float
) -> Trade:
    """Clipping bias against noise, for flat clipping of these norms.

    bias  = E max(|g| - C, 0), a bound on the length of the bias that clipping at C causes;
    noise = sigma C sqrt(d) / B, the root mean square length of the noise on the averaged gradient.
    """
    for name, value in (("d", d), ("noise_multiplier", noise_multiplier), ("B", batch_size)):
        if not (math.isfinite(value) and value > 0):
            raise ConfigurationError(f"{name} must be positive. Got {value!r} instead.")
    x = np.sort(_positive(norms))
    grid = np.geomspace(max(np.quantile(x, 0.01), x[-1] * 1e-6) / 10, x[-1] * 1.5, 160)
    index = np.searchsorted(x, grid, side="right")
    tail_sum = np.append(np.cumsum(x[::-1])[::-1], 0.0)
    bias = (tail_sum[index] - grid * (x.size - index)) / x.size
    return Trade(grid, np.maximum(bias, 0.0), noise_multiplier * grid * math.sqrt(d) / batch_size)


def trade_chart(trade: Trade, thresholds: Mapping[str, float] | None = None) -> Chart:
    """Bias, noise and their root of summed squares over the threshold."""
    floor = float(trade.total.min()) / 30
    bias, noise = (np.where(y < floor, np.nan, y) for y in (trade.bias, trade.noise))
    marks = {"best": trade.best, **(thresholds or {})}
    return Chart(
        "What a threshold costs",
        f"least error {trade.total.min():.3g} at C = {trade.best:.3g}",
        "threshold C",
        "length of the error of the averaged gradient",
        lines=(
            Line("clipping bias (bound)", trade.thresholds, bias),
            Line("noise", trade.thresholds, noise),
            Line("both", trade.thresholds, trade.total, dashed=True),
        ),
        marks=tuple(Mark(mark.x, f"{mark.label} {mark.x:.3g}") for mark in _marks(marks)),
        y_range=(floor, float(trade.total.max()) * 1.5),
    )


def stability_chart(fitted: TailFit) -> Chart:
    """The three indices over k, with Hill's band; a flat stretch is what one looks for."""
    hill = fitted.hill
    k = hill.curve_k.astype(np.float64)
    lines = [Line("Hill", k, hill.curve, low=hill.curve_low, high=hill.curve_high)]
    for name, index in (("moments", fitted.moments), ("Pickands", fitted.pickands)):
        curve_k = index.curve_k.astype(np.float64)
        lines.append(Line(name, curve_k, index.curve, dashed=name == "Pickands"))
    top = float(np.quantile(hill.curve_high, 0.95)) * 1.5
    return Chart(
        "Extreme value index",
        f"Hill {hill.gamma:.3g} [{hill.interval[0]:.3g}, {hill.interval[1]:.3g}], "
        f"moments {fitted.moments.gamma:.3g}, Pickands {fitted.pickands.gamma:.3g}",
        "upper order statistics k",
        "gamma",
        lines=tuple(lines),
        marks=(Mark(float(hill.k), f"chosen k = {hill.k}"),),
        log_y=False,
        y_range=(-0.5, max(top, 0.75)),
    )

"""What the tail plots show; `winsor.charts` draws them.

* `norm_histogram`: where the norms are, and where thresholds cut them.
* `tail_chart`: -log S against the norm on two logarithmic axes. A Weibull tail is a straight line
  of slope 1/theta; a power law bends down. Fitted curve and empirical points.
* `trade_chart`: what a threshold costs in bias and in noise.
* `stability_chart`: Hill, moment and Pickands indices against the number of order statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from winsor.charts.chart import Bars, Chart, Mark
from winsor.charts.series import Series, points_of
from winsor.core.checks import all_positive
from winsor.core.contract import ConfigurationError
from winsor.tails.fitting import TailFit
from winsor.tails.points import Floats


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
    """Draw a histogram over logarithmic bins; labels of thresholds say what share they clip."""
    x = _positive(norms)
    low, high = np.quantile(x, 0.001), x.max()
    edges = np.geomspace(max(low, high * 1e-6), high * (1 + 1e-9), 61)
    heights = np.histogram(x, edges)[0] / x.size * 100
    marks = tuple(
        Mark(mark.x, f"{mark.label} = {mark.x:.3g} (clips {100 * np.mean(x > mark.x):.3g} %)")
        for mark in _marks(thresholds)
    )
    return Chart(
        key="norms",
        title="Per-sample gradient norms",
        note=f"{x.size:,} norms, median {np.median(x):.3g}, largest {x.max():.3g}",
        x_label="norm",
        y_label="share of the sample, %",
        bars=Bars(tuple(edges.tolist()), tuple(heights.tolist())),
        marks=marks,
        log_x=True,
        y_range=(0.0, float(heights.max()) * (1.35 if marks else 1.05)),  # room for the labels
    )


def tail_chart(fitted: TailFit, thresholds: Mapping[str, float] | None = None) -> Chart:
    """Draw the Weibull plot with the fitted curve, and the line through the same points."""
    points = fitted.points
    rank = np.cumsum(points.weight) - 0.5 * points.weight
    depth = np.log(points.size / rank)
    level = fitted.quantile_levels
    body = (level > 0.02) & (level < 1 - fitted.fraction) & (fitted.quantile_values > 0)
    z = np.linspace(points.threshold, points.z[0] + 0.15 * (points.z[0] - points.threshold), 200)
    x = np.exp(z)
    body_depth = -np.log(1 - level[body])
    fit_label = f"fit, θ = {fitted.theta.value:.3g} at the edge"
    below = points_of(fitted.quantile_values[body], body_depth)
    series = [
        Series("body (not fitted)", below, colour=5, dots=True),
        Series("tail of the sample", points_of(np.exp(points.z), depth), colour=1, dots=True),
        Series(fit_label, points_of(x, fitted.curve.depth(z)), colour=2),
    ]
    if fitted.is_bent:
        straight = points_of(x, fitted.straight.depth(z))
        series.append(Series("Weibull line (no bend)", straight, colour=3, dashed=True))
    return Chart(
        key="tail",
        title=f"Tail plot: {fitted.verdict.tail.value}",
        note=f"θ = {fitted.theta}, K = {fitted.K}, upper {fitted.fraction:.3g} of {fitted.n:,} "
        "norms",
        x_label="norm x",
        y_label="-log P(norm > x)",
        series=tuple(line for line in series if line.points),
        marks=_marks(thresholds),
        log_x=True,
        log_y=True,
    )


@dataclass(frozen=True)
class Trade:
    """Bias and noise of the averaged gradient for a range of thresholds, and the best of them."""

    thresholds: Floats
    bias: Floats
    noise: Floats

    @property
    def total(self) -> Floats:
        """Bias and noise together at each threshold: the root of the sum of their squares."""
        return np.sqrt(self.bias**2 + self.noise**2)

    @property
    def best(self) -> float:
        """Threshold with the smallest `total`."""
        return float(self.thresholds[int(np.argmin(self.total))])


def bias_noise_trade(
    norms: ArrayLike, *, d: int, noise_multiplier: float, batch_size: float
) -> Trade:
    """Compare clipping bias with noise, for flat clipping of these norms.

    bias  = E max(|g| - C, 0), a bound on the length of the bias that clipping at C causes;
    noise = sigma C sqrt(d) / B, the root mean square length of the noise on the averaged gradient.
    """
    all_positive(d=d, noise_multiplier=noise_multiplier, B=batch_size)
    x = np.sort(_positive(norms))
    grid = np.geomspace(max(np.quantile(x, 0.01), x[-1] * 1e-6) / 10, x[-1] * 1.5, 160)
    index = np.searchsorted(x, grid, side="right")
    tail_sum = np.append(np.cumsum(x[::-1])[::-1], 0.0)
    bias = (tail_sum[index] - grid * (x.size - index)) / x.size
    return Trade(grid, np.maximum(bias, 0.0), noise_multiplier * grid * math.sqrt(d) / batch_size)


def trade_chart(trade: Trade, thresholds: Mapping[str, float] | None = None) -> Chart:
    """Draw bias, noise and the root of their summed squares over the threshold."""
    floor = float(trade.total.min()) / 30
    bias, noise = (np.where(y < floor, np.nan, y) for y in (trade.bias, trade.noise))
    marks = {"best": trade.best, **(thresholds or {})}
    return Chart(
        key="trade",
        title="What a threshold costs",
        note=f"least error {trade.total.min():.3g} at C = {trade.best:.3g}",
        x_label="threshold C",
        y_label="error of the averaged gradient",
        series=(
            Series("clipping bias (bound)", points_of(trade.thresholds, bias)),
            Series("noise", points_of(trade.thresholds, noise), colour=1),
            Series("both", points_of(trade.thresholds, trade.total), colour=2, dashed=True),
        ),
        marks=tuple(Mark(mark.x, f"{mark.label} {mark.x:.3g}") for mark in _marks(marks)),
        log_x=True,
        log_y=True,
        y_range=(floor, float(trade.total.max()) * 1.5),
    )


def stability_chart(fitted: TailFit) -> Chart:
    """Draw the three indices over k, with Hill's band; look for a flat stretch."""
    hill = fitted.hill
    band = zip(hill.curve_k, hill.curve_low, hill.curve_high, strict=True)
    series = [
        Series(
            "Hill",
            points_of(hill.curve_k, hill.curve),
            tuple((float(k), float(low), float(high)) for k, low, high in band),
        ),
        Series("moments", points_of(fitted.moments.curve_k, fitted.moments.curve), colour=1),
        Series(
            "Pickands",
            points_of(fitted.pickands.curve_k, fitted.pickands.curve),
            colour=2,
            dashed=True,
        ),
    ]
    top = float(np.quantile(hill.curve_high, 0.95)) * 1.5
    return Chart(
        key="stability",
        title="Extreme value index",
        note=f"Hill {hill.gamma:.3g} [{hill.interval[0]:.3g}, {hill.interval[1]:.3g}], "
        f"moments {fitted.moments.gamma:.3g}, Pickands {fitted.pickands.gamma:.3g}",
        x_label="upper order statistics k",
        y_label="gamma",
        series=tuple(series),
        marks=(Mark(float(hill.k), f"chosen k = {hill.k}"),),
        log_x=True,
        y_range=(-0.5, max(top, 0.75)),
    )

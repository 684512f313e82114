"""What lattice noise costs beyond the noise it stands for. Proof: docs/privacy.md.

Two things are paid for:

    the grid      rounding to gamma = std 2^-bits moves two neighbouring sums apart by at most
                  2 gamma in each coordinate, so 2 gamma sqrt(d) in L2 and 2 gamma d in L1:
                  noise is made wider by as much (`on_grid`)
    the sampler   N draws, each lattice point within a factor 1 +- ETA of the ideal, and mass tau
                  beyond the reach:  epsilon + 2 Lambda,  exp(Lambda) (delta + (1 + e^epsilon)
                  (N tau + beta)),  Lambda = N eta^2 + eta sqrt(2 N log(1/beta)) for any beta > 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from winsor.core.contract import Bounded, ConfigurationError
from winsor.core.noise.protocol import Mechanism

LEAST_BITS, MOST_BITS = 26, 40
MOST_BITS_L1 = 34
"""Finer would leave too little room for sums: they are cut off at 2^50 gamma."""
ETA = 2.0**-45
"""Relative error of the probability of a lattice point, at most."""
OUTSIDE = {"gaussian": 1.3e-38, "laplace": 2.1e-42}
"""Mass beyond the reach of the tables."""
REACH = {"gaussian": 12.9, "laplace": 95.0}
"""How far the tables reach, a little less than they do: in deviations, or scales."""
MOST_DRAWS = 2.0**80
SHARE = 1e-4
"""The part of delta that is set aside for the sampler."""
MOST_VALUES = 1e13
"""Noise values of one run at most: every account is charged for so many, and doors refuse more."""
WIDEST = 1.0005
"""Noise is never made wider than this: ModelMix relies on it (`contrib/modelmix/update.py`)."""


def bits_for(size: int, l1: bool = False) -> int:
    """How fine the grid is for ``size`` coordinates: the noise is 2^bits grid steps wide.

    Chosen so that `growth` stays below 2^-16 of the noise (in L2, up to 2^46 coordinates)."""
    wanted = 17 + (math.ceil(math.log2(max(1, size))) if l1 else half_log2_up(size))
    return min(max(LEAST_BITS, wanted), _most(l1))


def half_log2_up(size: int) -> int:
    """The smallest j with 2^j >= sqrt(size)."""
    return (max(1, size) - 1).bit_length() + 1 >> 1


def growth(sizes: dict[int, int], l1: bool = False) -> float:
    """By how much rounding increases the joint sensitivity, in units of the noise (std or scale).

    ``sizes``: number of coordinates on grids of so many bits, over all parts of one release. With
    noise multiplier nm, the release is one of multiplier 1/(1/nm + growth).

        growth = 2 sqrt(sum_j d_j 4^-bits_j)        (Laplace, in L1:  2 sum_j d_j 2^-bits_j)

    >>> growth({26: 10**4})  # doctest: +ELLIPSIS
    2.98...e-06
    """
    if l1:
        total = sum(size * 2.0**-bits for bits, size in sizes.items())
    else:
        total = math.sqrt(sum(size * 4.0**-bits for bits, size in sizes.items()))
    return 2.0 * total * (1 + 2.0**-40)


def compensated(noise_multiplier: float, growth: float) -> float:
    """By what to multiply the noise for the event to stay as it was: s' with s'(1 - nm growth) = s.

    The growth is in units of the noise itself, so the larger noise has a larger grid."""
    return 1.0 / (1.0 - noise_multiplier * growth)


def on_grid(
    mechanism: Mechanism, parts: Mapping[str, Bounded], sizes: Mapping[str, int]
) -> tuple[dict[str, float], dict[str, int]]:
    """The standard deviations of ``mechanism`` for ``parts``, made wide enough for the grid, and
    how many bits finer than the noise the grid of each part is.

    Rounding moves two neighbouring sums apart by `growth` in units of the noise. Noise wider by
    1 / (1 - nm growth) makes up for it: the release is then at most as revealing as the event says,
    which needs no change. The same factor covers smaller shifts (a mixture's) and the largest
    coordinate of a record, each with its own multiplier. Where noise is correlated over b steps,
    one visit of a record is rounded b times: d_j counts so often.
    """
    std = mechanism.std(parts)
    l1 = mechanism.law == "laplace"
    multiplier = mechanism.noise_multiplier / min(map(_smallest_shift, parts.values()))
    finer = max(0, math.ceil(math.log2(multiplier / 8)))  # loud noise needs a finer grid
    rounded = {name: mechanism.roundings * sizes[name] for name in parts}
    bits = {name: min(bits_for(rounded[name], l1) + finer, _most(l1)) for name in parts}
    grids: dict[int, int] = {}
    for name in parts:
        grids[bits[name]] = grids.get(bits[name], 0) + rounded[name]
    loss = multiplier * growth(grids, l1)
    for name, part in parts.items():
        shift = part.sensitivity.l1 if l1 else part.sensitivity.add_remove
        if part.coordinate_bound is not None and shift is not None:
            # 2 gamma over the bound of one coordinate
            ratio = shift / part.coordinate_bound
            loss = max(loss, multiplier * ratio * 2.0 * 2.0 ** -bits[name])
    if not loss < 1 - 1 / WIDEST:
        raise ConfigurationError(
            "noise_multiplier must leave the grid of the noise far finer than the bound. Got "
            f"{mechanism.noise_multiplier!r} instead, with {sum(sizes.values())} coordinates. Use "
            "less noise, or fewer steps for the same epsilon."
        )
    factor = compensated(1.0, loss)
    return {name: value * factor for name, value in std.items()}, bits


def _most(l1: bool) -> int:
    return MOST_BITS_L1 if l1 else MOST_BITS


def _smallest_shift(part: Bounded) -> float:
    """The smallest shift that a record can cause, over the largest; 1 unless it is random."""
    mixture = part.sensitivity.mixture
    shifts = [1.0] if mixture is None else [shift for _, shift in mixture if shift > 0]
    return min(shifts) / max(shifts)


def sampler(draws: float, beta: float, eta: float = ETA) -> float:
    """Lambda: N draws have a likelihood within exp(+-Lambda) of ideal, but for probability beta."""
    if not (0 <= draws <= MOST_DRAWS and 0 < beta < 1):
        raise ValueError(f"draws must be at most 2^80 and beta in (0, 1). Got {draws}, {beta}.")
    exact = eta / (1 - eta)
    return draws * exact**2 + exact * math.sqrt(2 * draws * math.log(1 / beta))


def charge(
    epsilon_at: Callable[[float], float],
    delta: float,
    draws: float = MOST_VALUES,
    law: str = "gaussian",
    share: float = SHARE,
    least_multiplier: float = math.inf,
) -> float:
    """The epsilon of the real mechanism at ``delta``, from the ideal one's curve ``epsilon_at``.

    ``draws`` bounds the number of noise values over the whole run, d T. ``share`` of delta is set
    aside for the sampler. Returns infinity where that does not suffice. Outputs that one world
    reaches and the other does not are counted in either of two ways (docs/privacy.md): by
    (1 + e^epsilon) N tau, or, knowing the ``least_multiplier``, by the chance that noise comes
    within one shift of its reach, which does not grow with epsilon.

    >>> charge(lambda delta: 1.0, 1e-6, 1e13) - 1.0 < 2e-6
    True
    """
    inner = delta * (1 - share)
    epsilon = epsilon_at(inner)
    if not epsilon <= 600:
        return math.inf
    if epsilon == 0 and inner + _variation(draws, law) <= delta:
        return 0.0
    weight = 1 + math.exp(epsilon)
    beta = min(0.5, 0.25 * share * delta / weight)
    shift = sampler(draws, beta)
    outside = min(weight * draws * OUTSIDE[law], draws * _beyond(law, least_multiplier))
    spent = math.exp(shift) * (inner + outside + weight * beta)
    return epsilon + 2 * shift if spent <= delta else math.inf


def _variation(draws: float, law: str = "gaussian") -> float:
    """How far, in total variation, sampling may take both worlds together from ideal noise."""
    return 2 * (draws * OUTSIDE[law] + ETA * math.sqrt(draws))


def _beyond(law: str, multiplier: float) -> float:
    """Chance that one draw lies within a record's largest shift of the sampler's reach."""
    room = REACH[law] - 1 / multiplier
    if room <= 0:
        return 1.0
    return math.erfc(room / math.sqrt(2)) if law == "gaussian" else math.exp(-room)


def ideal_target(epsilon: float, delta: float) -> tuple[float, float]:
    """What ideal noise may spend, so that real noise stays within (epsilon, delta)."""
    return epsilon - min(4e-6, epsilon / 2), delta * (1 - SHARE)


def charged_delta(
    delta_at: Callable[[float], float], epsilon: float, draws: float = MOST_VALUES
) -> float:
    """The delta of the real mechanism at ``epsilon``, from the ideal one's ``delta_at``.

    >>> 1e-5 < charged_delta(lambda epsilon: 1e-5, 1.0) < 1.0002e-5
    True
    """
    weight = 1 + math.exp(min(epsilon, 600.0))
    beta = 1e-18 / weight
    shift = sampler(draws, beta)
    ideal = delta_at(max(0.0, epsilon - 2 * shift))
    if epsilon < 2 * shift:  # no room to shift: total variation over all draws instead
        ideal += _variation(draws)
    outside = weight * (draws * OUTSIDE["gaussian"] + beta)
    return min(1.0, math.exp(shift) * (ideal * (1 + SHARE) + outside)) if ideal else 0.0

"""The events of `dp_accounting` that winsor accounts for: their JSON form and their handlers."""

from __future__ import annotations

import math

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_laplace_mechanism,
    identity,
)

from winsor.core.accounting import privacy_losses as losses
from winsor.core.accounting import rdp
from winsor.core.contract import ConfigurationError, Neighbouring, UnsupportedEvent
from winsor.core.events.declared import (
    declare,
    inner_kind,
    number_kind,
    only,
    several_kind,
    whole_kind,
)
from winsor.core.events.registry import Grid, Json, Orders, event_from_json, event_to_json, register

_MOST_LAPLACE_POINTS = 1 << 17  # dp_accounting spends some microseconds of Python on each


def _with_noise(multiplier: float) -> float:
    """A loss distribution without noise would be all infinite; closed forms handle that case."""
    if multiplier == 0:
        raise UnsupportedEvent(
            "noise_multiplier must be above 0 for a privacy loss distribution. Got 0 instead: "
            "without noise nothing is private. Add noise."
        )
    return multiplier


# ----------------------------------------------------------------------- Gaussian, Laplace, nothing


def _gaussian_pld(
    event: GaussianDpEvent, relation: Neighbouring, grid: Grid
) -> PrivacyLossDistribution:
    nm = _with_noise(event.noise_multiplier)
    return losses.sampled_gaussian(1.0, nm, grid, replace=False)


def _laplace_pld(
    event: LaplaceDpEvent, relation: Neighbouring, grid: Grid, rate: float = 1.0
) -> PrivacyLossDistribution:
    scale = _with_noise(event.noise_multiplier)
    if 2 / scale / grid.interval > _MOST_LAPLACE_POINTS:
        raise losses.TooFine(f"interval {grid.interval} for Laplace noise of scale {scale}")
    return from_laplace_mechanism(
        scale, value_discretization_interval=grid.interval, sampling_prob=rate
    )


_MULTIPLIER = {"noise_multiplier": number_kind()}
declare(
    NoOpDpEvent,
    "nothing",
    {},
    pld=lambda event, relation, grid: identity(grid.interval),
    rdp=rdp.nothing,
)
declare(GaussianDpEvent, "gaussian", _MULTIPLIER, pld=_gaussian_pld, rdp=rdp.gaussian)
declare(LaplaceDpEvent, "laplace", _MULTIPLIER, pld=_laplace_pld, rdp=rdp.laplace)
declare(ZCDpEvent, "zcdp", {"rho": number_kind(), "xi": number_kind()}, rdp=rdp.zcdp)


# -------------------------------------------------------------------------------------- sampling


def _poisson_pld(
    event: PoissonSampledDpEvent, relation: Neighbouring, grid: Grid
) -> PrivacyLossDistribution:
    inner, rate = event.event, event.sampling_probability
    if isinstance(inner, GaussianDpEvent):
        nm = _with_noise(inner.noise_multiplier)
        replace = relation is Neighbouring.REPLACE_ONE
        return losses.sampled_gaussian(rate, nm, grid, replace=replace)
    if isinstance(inner, LaplaceDpEvent):
        only(relation, Neighbouring.ADD_OR_REMOVE_ONE, "Poisson-sampled Laplace noise")
        return _laplace_pld(inner, relation, grid, rate)
    raise UnsupportedEvent(
        "a Poisson-sampled event must hold a GaussianDpEvent or a LaplaceDpEvent. Got "
        f"{inner!r} instead. Write the joint release of a step as one event."
    )


def _subset_gaussian(event: SampledWithoutReplacementDpEvent, relation: Neighbouring) -> float:
    """The multiplier of the event, if it can be accounted for at all."""
    only(relation, Neighbouring.REPLACE_ONE, "batches of fixed size")
    if not isinstance(event.event, GaussianDpEvent):
        raise UnsupportedEvent(
            "an event on a subset of fixed size must hold a GaussianDpEvent. Got "
            f"{event.event!r} instead. Use Poisson sampling for other noise."
        )
    return float(event.event.noise_multiplier)


def _subset_pld(
    event: SampledWithoutReplacementDpEvent, relation: Neighbouring, grid: Grid
) -> PrivacyLossDistribution:
    nm = _with_noise(_subset_gaussian(event, relation))
    return losses.subset_gaussian(event.sample_size / event.source_dataset_size, nm, grid)


def _subset_rdp(
    event: SampledWithoutReplacementDpEvent, relation: Neighbouring, orders: Orders
) -> Orders:
    _with_noise(_subset_gaussian(event, relation))
    return rdp.subset(event, relation, orders)


_SIZE, _SHARE, _ANY = whole_kind(1).write, number_kind(1.0).write, number_kind().write


def _subset_to_json(event: SampledWithoutReplacementDpEvent) -> Json:
    n = _SIZE("source_dataset_size", event.source_dataset_size)
    size = _SIZE("sample_size", event.sample_size)
    _SHARE("sample_size / source_dataset_size", size / n)
    return {"n": n, "size": size, "inner": event_to_json(event.event)}


declare(
    PoissonSampledDpEvent,
    "poisson",
    {"sampling_probability": number_kind(1.0, key="rate"), "event": inner_kind()},
    pld=_poisson_pld,
    rdp=rdp.sampled,
)
register(
    SampledWithoutReplacementDpEvent,
    name="subset",
    to_json=_subset_to_json,
    from_json=lambda data: SampledWithoutReplacementDpEvent(
        _SIZE("source_dataset_size", data["n"]),
        _SIZE("sample_size", data["size"]),
        event_from_json(data["inner"]),
    ),
    pld=_subset_pld,
    rdp=_subset_rdp,
)


# ------------------------------------------------------------------------------ mixtures of shifts


def _mixture_pld(
    event: MixtureOfGaussiansDpEvent, relation: Neighbouring, grid: Grid
) -> PrivacyLossDistribution:
    only(relation, Neighbouring.ADD_OR_REMOVE_ONE, "mixtures of Gaussians")
    if max(event.sensitivities) == 0:
        return identity(grid.interval)
    return losses.mixture_of_gaussians(
        _with_noise(event.standard_deviation), event.sensitivities, event.sampling_probs, grid
    )


def _mixture_rdp(
    event: MixtureOfGaussiansDpEvent, relation: Neighbouring, orders: Orders
) -> Orders:
    """Every shift that is not zero made the largest one: the divergences grow with each shift."""
    only(relation, Neighbouring.ADD_OR_REMOVE_ONE, "mixtures of Gaussians")
    pairs = list(zip(event.sensitivities, event.sampling_probs, strict=True))
    largest = max(event.sensitivities)
    if largest == 0:
        return rdp.nothing(NoOpDpEvent(), relation, orders)
    rate = min(1.0, math.fsum(p for shift, p in pairs if shift > 0))
    shifted = GaussianDpEvent(event.standard_deviation / largest)
    return rdp.sampled(PoissonSampledDpEvent(rate, shifted), relation, orders)


def _mixture_to_json(event: MixtureOfGaussiansDpEvent) -> Json:
    shifts = [_ANY("sensitivities", shift) for shift in event.sensitivities]
    probabilities = [_SHARE("sampling_probs", p) for p in event.sampling_probs]
    total = math.fsum(probabilities)
    if len(shifts) != len(probabilities) or not math.isclose(total, 1.0, rel_tol=1e-9):
        raise ConfigurationError(
            "sampling_probs of an event must have one entry per sensitivity and add up to 1. Got "
            f"{probabilities!r} for {shifts!r} instead."
        )
    std = _ANY("standard_deviation", event.standard_deviation)
    return {"std": std, "shifts": shifts, "probabilities": probabilities}


def _mixture_from_json(data: Json) -> DpEvent:
    event = MixtureOfGaussiansDpEvent(
        _ANY("standard_deviation", data["std"]),
        tuple(data["shifts"]),
        tuple(data["probabilities"]),
    )
    _mixture_to_json(event)
    return event


register(
    MixtureOfGaussiansDpEvent,
    name="mixture_of_gaussians",
    to_json=_mixture_to_json,
    from_json=_mixture_from_json,
    pld=_mixture_pld,
    rdp=_mixture_rdp,
)


# ----------------------------------------------------------------------------------- compositions

declare(SelfComposedDpEvent, "repeated", {"event": inner_kind(), "count": whole_kind(0)})
declare(ComposedDpEvent, "composed", {"events": several_kind()})

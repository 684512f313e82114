"""From the arguments of `make_private` to the run they plan, its noise and its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winsor.core.checks import as_delta, as_relation, positive
from winsor.core.contract import Bounded, ConfigurationError, Neighbouring
from winsor.core.ledger.guarantee import together
from winsor.core.noise.protocol import Mechanism
from winsor.core.sampling.samplers import Poisson
from winsor.core.sampling.units import UnitRows
from winsor.gradients import refuse_unsupported, trainable_parameters
from winsor.planning.bands import Banded, Workload
from winsor.planning.choose import dataset_size, planned_steps
from winsor.planning.holders import earlier_ledgers
from winsor.planning.run import PlannedRun
from winsor.rules.rule import dry_run
from winsor.training.correlated import cyclic, learning_rates, momentum
from winsor.training.saving.state import StepBudget

if TYPE_CHECKING:
    from winsor.training.make_private import Arguments


def planned_run(arguments: Arguments, units: UnitRows | None = None) -> PlannedRun:
    """Plan the run that `make_private` starts with these arguments, without reading a row.

    ``units`` are those of ``unit=``, if persons are protected. Noise that is correlated over steps
    has its coefficients chosen for the run, and the sampling that they need.
    """
    n = dataset_size(arguments["dataset"]) if units is None else units.n
    size = arguments["batch_size"]
    epochs, steps = arguments.get("epochs"), arguments.get("steps")
    delta = as_delta(arguments["delta"], n, arguments.get("allow_large_delta", False))
    mechanism = arguments.get("mechanism") or "gaussian"
    sampling = arguments.get("sampling")
    if isinstance(mechanism, Banded):
        length = planned_steps(epochs, steps, Poisson.of_batch_size(n, size))
        optimizer = arguments["optimizer"]
        rates = learning_rates(optimizer, arguments.get("scheduler"), length)
        workload = Workload(length, momentum(optimizer), rates)
        mechanism = mechanism.settled(workload, size / n, arguments.get("epsilon"), delta)
        sampling = cyclic(sampling, n, size, mechanism)
    relation = as_relation(arguments.get("relation", Neighbouring.ADD_OR_REMOVE_ONE))

    unit = "row" if units is None else "person"

    def parts(expected_size: float) -> dict[str, Bounded]:
        refuse_unsupported(arguments["model"])
        parameters = trainable_parameters(arguments["model"])
        return dry_run(arguments["rule"], parameters, expected_size)

    return PlannedRun.of_numbers(
        n,
        size,
        delta=delta,
        steps=steps,
        epochs=epochs,
        relation=relation,
        sampling=sampling or "poisson",
        sampling_rate=arguments.get("sampling_rate"),
        mechanism=mechanism,
        parts_of=parts,
        before=together(earlier_ledgers(arguments.get("after", ()), relation, unit)),
    )


def noise_and_budget(
    planned: PlannedRun, epsilon: float | None, noise_multiplier: float | None
) -> tuple[Mechanism, StepBudget]:
    """Return the mechanism, and the steps that the target covers with it.

    ``epsilon`` alone is spent by the planned steps; with ``noise_multiplier`` it ends the run
    before the step that would exceed it, and without a target nothing does.
    """
    if epsilon is not None:
        positive("epsilon", epsilon)
    if noise_multiplier is None:
        if epsilon is None:
            raise ConfigurationError("give epsilon (the target) or noise_multiplier. Got none.")
        mechanism = planned.with_noise(planned.noise_for(epsilon))
        return mechanism, StepBudget(planned.delta, planned.steps, epsilon, planned.steps)
    if planned.before:
        raise ConfigurationError(
            "after must come with epsilon alone, which is then of all releases together. Got "
            f"noise_multiplier={noise_multiplier!r} instead; winsor.total adds up by itself."
        )
    mechanism = planned.with_noise(noise_multiplier)
    planned.history(noise_multiplier)  # refuses what cannot be accounted for
    if epsilon is None:
        return mechanism, StepBudget(planned.delta, planned.steps)
    allowed = planned.allowed_steps(noise_multiplier, epsilon)
    return mechanism, StepBudget(planned.delta, planned.steps, epsilon, allowed)

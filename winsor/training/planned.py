"""From the arguments of `make_private` to the run they plan, its noise and its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from winsor.core.checks import as_delta, as_relation, positive
from winsor.core.contract import Bounded, ConfigurationError, Neighbouring
from winsor.core.ledger.guarantee import together
from winsor.core.noise.protocol import Mechanism
from winsor.core.sampling.samplers import Poisson, Sampler
from winsor.core.sampling.units import UnitRows
from winsor.gradients import Need, refuse_unsupported, trainable_parameters
from winsor.gradients.ghost import PER_SAMPLE
from winsor.planning.bands import Banded, Workload
from winsor.planning.choose import dataset_size, planned_steps
from winsor.planning.holders import earlier_ledgers
from winsor.planning.run import PlannedRun
from winsor.rules.rule import dry_run
from winsor.training.correlated import cyclic, learning_rates, momentum
from winsor.training.feeding.slots import Slots
from winsor.training.ranks.ranks import Ranks
from winsor.training.saving.state import StepBudget
from winsor.training.update import OwnUpdate

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

    planned = PlannedRun.of_numbers(
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
    slots = slots_of(arguments, planned)
    return planned if slots is None else replace(planned, sampler=slots[1])


def slots_of(arguments: Arguments, planned: PlannedRun) -> tuple[Slots, Sampler] | None:
    """Return the slots of fixed shapes, if they are asked for, and the sampler that pays for draws
    beyond them."""
    if not arguments.get("fixed_shapes", False):
        return None
    needs = arguments["rule"].needs
    unserved = {
        "unit=": arguments.get("unit") is not None,
        "group_size= or augment=": arguments.get("group_size", 1) != 1,
        "several ranks": Ranks.here() is not None,
        'engine="loop"': arguments.get("engine") == "loop",
        "ModelMix": isinstance(arguments.get("mechanism"), OwnUpdate),
        "rules that do not bound recorded rows": Need.FORWARD in needs or not needs & PER_SAMPLE,
    }
    for name, is_there in unserved.items():
        if is_there:
            raise ConfigurationError(
                f"fixed_shapes=True must be used without {name}: slots of single rows do not serve "
                "it. Got both instead. Leave out one of them."
            )
    return Slots.of(planned.sampler, planned.steps, arguments.get("max_physical_batch_size"))


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

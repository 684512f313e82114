"""What a run will release, before it releases anything: enough to choose its noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dp_accounting import dp_event

from winsor.core.checks import choice, positive
from winsor.core.contract import Bounded, ConfigurationError, Neighbouring
from winsor.core.door import price, stretch
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.laplace import Laplace
from winsor.core.noise.protocol import Choice, Mechanism
from winsor.core.sampling.samplers import Sampler
from winsor.planning import calibrate
from winsor.training.saving.state import StepBudget


@dataclass(frozen=True)
class PlannedSteps:
    """What a run will release, before it releases anything: enough to choose its noise."""

    parts: Mapping[str, Bounded]
    asked: str | Choice
    sampler: Sampler
    relation: Neighbouring
    delta: float
    steps: int
    before: tuple[tuple[dp_event.DpEvent, int], ...] = ()
    """What was spent on the rows before, to be covered by the same epsilon."""

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        if isinstance(self.asked, Choice):
            return self.asked.with_noise(noise_multiplier, self.sampler.expected_size)
        names: dict[str, type[Gaussian] | type[Laplace]]
        names = {"gaussian": Gaussian, "laplace": Laplace}
        remedy = "Or pass winsor.ModelMix(...) or winsor.Banded(...)."
        return names[choice("mechanism", self.asked, names, remedy)](noise_multiplier)

    def events(self, noise_multiplier: float) -> list[tuple[dp_event.DpEvent, int]]:
        """The events of the planned steps, with how often each happens."""
        mechanism = self.mechanism(noise_multiplier)
        if tuple(mechanism.phases) == (0,):
            local = mechanism.event(self.parts, 0)
            return self.sampler.history(local, self.relation, self.steps)
        found = []
        first = 0
        while first < self.steps:
            alike = stretch(mechanism.phases, first)
            event = price(mechanism, self.sampler, self.relation, self.parts, first)
            found.append((event, min(alike.stop, self.steps) - first))
            first = alike.stop
        return found

    def noise_and_budget(
        self, epsilon: float | None, noise_multiplier: float | None
    ) -> tuple[Mechanism, StepBudget]:
        """The mechanism, and the steps that the target covers with it."""
        if epsilon is not None:
            positive("epsilon", epsilon)
        if noise_multiplier is None:
            if epsilon is None:
                raise ConfigurationError("give epsilon (the target) or noise_multiplier. Got none.")
            noise_multiplier = self._calibrated(epsilon)
            return self.mechanism(noise_multiplier), self._budget(epsilon, self.steps)
        if self.before:
            raise ConfigurationError(
                "after must come with epsilon alone, which is then of all releases together. Got "
                f"noise_multiplier={noise_multiplier!r} instead; winsor.total adds up by itself."
            )
        events = self.events(noise_multiplier)  # refuses what cannot be accounted for
        if epsilon is None:
            return self.mechanism(noise_multiplier), self._budget(None, None)
        allowed = self.sampler.block * min(
            calibrate.max_steps(event, epsilon, self.delta, self.relation) for event, _ in events
        )
        return self.mechanism(noise_multiplier), self._budget(epsilon, allowed)

    def _budget(self, epsilon: float | None, allowed: int | None) -> StepBudget:
        return StepBudget(self.delta, self.steps, epsilon, allowed)

    def _calibrated(self, epsilon: float) -> float:
        def whole_run(multiplier: float) -> dp_event.DpEvent:
            history = [*self.before, *self.events(multiplier)]
            return dp_event.ComposedDpEvent(
                [dp_event.SelfComposedDpEvent(event, count) for event, count in history]
            )

        return calibrate.noise_multiplier(whole_run, 1, epsilon, self.delta, self.relation)

"""The releases of a private run that has not started, as privacy events.

Everything that asks "which noise, for which epsilon?" asks here: `make_private`, evaluations along
a run, tuning, recommendations and `winsor plan`. The events are those that the run will record, so
what is planned is what is spent. No torch here.

>>> run = PlannedRun.of_numbers(60_000, 600, epochs=10, delta=1e-5)
>>> run.steps, round(run.noise_for(3.0), 2)
(1000, 0.81)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from winsor.core.accounting import Spent, certify
from winsor.core.checks import choice
from winsor.core.contract import Bounded, Neighbouring, Sensitivity
from winsor.core.events.joint import check_shares, joint_event
from winsor.core.events.registry import History
from winsor.core.noise.protocol import Choice, LocalEvent, Mechanism
from winsor.core.sampling.samplers import Sampler
from winsor.planning import calibrate
from winsor.planning.calibrate import Budget
from winsor.planning.choose import make_sampler, planned_steps

PARTS = {"grad": Bounded(None, Sensitivity.per_sample(1.0, "a rule that bounds each record"))}
"""What a step releases under such a rule. The size of the bound cancels: noise scales with it."""

_NAMES = ("gaussian", "laplace")


def _per_sample(size: float) -> Mapping[str, Bounded]:
    return PARTS


@dataclass(frozen=True)
class PlannedRun:
    """The releases of a run that has not started, as privacy events.

    Guarantee
    ---------
    `history` at a noise multiplier is what the ledger of the run holds when all its steps are
    done, after ``before`` and with ``looks``; `spent` is its certified bound.
    """

    sampler: Sampler
    parts: Mapping[str, Bounded]
    """What a step releases, with the bound of each part."""
    mechanism: str | Choice
    """ "gaussian", "laplace", or a choice such as `winsor.Banded(...)`."""
    relation: Neighbouring
    delta: float
    steps: int
    before: History = ()
    """What was spent on the rows before, to be covered by the same epsilon."""
    looks: History = ()
    """What is released along the run beside its steps: its evaluations."""

    @classmethod
    def of_numbers(
        cls,
        n: int,
        batch_size: float,
        *,
        delta: float,
        steps: int | None = None,
        epochs: float | None = None,
        relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
        sampling: str | Sampler = "poisson",
        sampling_rate: float | None = None,
        mechanism: str | Choice = "gaussian",
        parts_of: Callable[[float], Mapping[str, Bounded]] = _per_sample,
        before: History = (),
    ) -> PlannedRun:
        """Plan a run from public numbers; its length is ``steps`` or ``epochs``.

        ``parts_of`` gives the parts of a step for the expected batch size; by default those of a
        rule that bounds each record. The other arguments are those of `make_private`.
        """
        sampler = make_sampler(sampling, n, batch_size, sampling_rate)
        length = planned_steps(epochs, steps, sampler)
        parts = parts_of(sampler.expected_size)
        return cls(sampler, parts, mechanism, relation, delta, length, before)

    def with_noise(self, noise_multiplier: float) -> Mechanism:
        """Return the mechanism with its noise."""
        if isinstance(self.mechanism, Choice):
            return self.mechanism.with_noise(noise_multiplier, self.sampler.expected_size)
        from winsor.core.noise.gaussian import Gaussian
        from winsor.core.noise.laplace import Laplace

        remedy = "Or pass winsor.ModelMix(...) or winsor.Banded(...)."
        name = choice("mechanism", self.mechanism, _NAMES, remedy)
        return Gaussian(noise_multiplier) if name == "gaussian" else Laplace(noise_multiplier)

    def history(self, noise_multiplier: float) -> History:
        """Return all events of the run with how often each happens."""
        return [*self.before, *self._steps(noise_multiplier), *self.looks]

    def noise_for(self, epsilon: float) -> float:
        """Return the noise multiplier at which the whole run spends ``epsilon``."""
        return calibrate.noise_multiplier(self.history, self.budget(epsilon))

    def spent(self, noise_multiplier: float) -> Spent:
        """Certify what the whole run spends."""
        return certify(self.history(noise_multiplier), self.delta, self.relation)

    def allowed_steps(self, noise_multiplier: float, epsilon: float) -> int:
        """Return how many steps ``epsilon`` covers with this noise, whatever was planned."""
        budget = self.budget(epsilon)
        events = [event for event, _ in self._steps(noise_multiplier)]
        return self.sampler.block * min(calibrate.max_steps(event, budget) for event in events)

    def budget(self, epsilon: float) -> Budget:
        """Return the budget of ``epsilon`` at the run's delta and relation."""
        return Budget(epsilon, self.delta, self.relation)

    def _steps(self, noise_multiplier: float) -> History:
        if self.mechanism == "gaussian":  # its event alone: planning never draws noise
            check_shares(self.parts)
            return self._alike(joint_event(self.parts, noise_multiplier))
        mechanism = self.with_noise(noise_multiplier)
        if tuple(mechanism.phases) == (0,):
            return self._alike(mechanism.event(self.parts, 0))
        from winsor.core.door import price, stretch

        found, first = [], 0
        while first < self.steps:
            event = price(mechanism, self.sampler, self.relation, self.parts, first)
            stop = min(stretch(mechanism.phases, first).stop, self.steps)
            found.append((event, stop - first))
            first = stop
        return found

    def _alike(self, local: LocalEvent) -> History:
        """Steps that all cost the same given their batch."""
        return self.sampler.history(local, self.relation, self.steps)

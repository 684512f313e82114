"""What a mechanism is: it scales noise to a bound, and says what that costs.

Mechanism    one noise: standard deviations, the event, and how noise is added
LocalEvent   the event given the batch; samplers amplify it
DrawNoise    the noise of one release, by the name of the part that it is for
Choice       what a user may pass as ``mechanism=``: builds the mechanism for a noise multiplier
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dp_accounting import dp_event

from winsor.core.contract import Bounded, Neighbouring


class LocalEvent(Protocol):
    """The privacy of one release given its batch. Each mechanism says how sampling amplifies it."""

    def poisson(self, q: float, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event if each row takes part with probability ``q``."""

    def fixed_size(self, n: int, size: int, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event on a random subset of ``size`` of the n rows."""

    def whole(self, relation: Neighbouring) -> dp_event.DpEvent:
        """Return the event if all rows take part."""


class DrawNoise(Protocol):
    """The noise of one release, by the name of the part that it is for."""

    def add(self, name: str, leaves: Sequence[Any], scale: float, law: str) -> None:
        """Replace the sum in ``leaves`` by its release: rounded to a grid, with noise of ``law``
        ("gaussian" with standard deviation ``scale``, or "laplace") on the same grid."""


class Mechanism(Protocol):
    """Scales noise to bounds; derives event and noise from the very same numbers."""

    @property
    def noise_multiplier(self) -> float:
        """Noise scale of the joint release over its add/remove sensitivity."""

    @property
    def law(self) -> str:
        """What noise is added: "gaussian" or "laplace"."""
        ...

    @property
    def phases(self) -> Sequence[int]:
        """The first steps of stretches in which every step costs the same; 0 among them."""
        ...

    @property
    def roundings(self) -> int:
        """How many releases round what one visit of a record moves: above 1 if noise of a step is
        taken back later, and the mechanism is then `Correlated`."""
        ...

    def std(self, parts: Mapping[str, Bounded]) -> dict[str, float]:
        """Return the standard deviation of the noise of each part."""

    def event(self, parts: Mapping[str, Bounded], step: int = 0) -> LocalEvent:
        """Return what the release of ``step`` costs, given its batch."""

    def add_noise(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], draw: DrawNoise
    ) -> dict[str, Any]:
        """Replace every part by its release, in place, and return the values."""

    def config(self) -> dict[str, Any]:
        """Return what the ledger's header says of this mechanism."""


@runtime_checkable
class Correlated(Mechanism, Protocol):
    """A mechanism that remembers the noise of earlier steps."""

    def covered(
        self, parts: Mapping[str, Bounded], std: Mapping[str, float], step: int
    ) -> Mapping[str, Any]:
        """What the noise of ``step`` will cover in place of the sums."""
        ...

    def growth(self, step: int) -> float:
        """Standard deviation of all noise in the release of ``step``, over that of its own."""
        ...

    def restart(self) -> None:
        """Forget the past: the next step is step 0 of a new stretch, under another key."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the past noises: as secret as the key."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave."""


@runtime_checkable
class Choice(Protocol):
    """A mechanism before its noise is known. ``"gaussian"`` and ``"laplace"`` have their own."""

    def with_noise(self, noise_multiplier: float, expected_size: float) -> Mechanism:
        """Return the mechanism with this noise, for sums divided by ``expected_size``."""

"""`winsor plan --mechanism modelmix`: both sides of the trade that mixing offers.

With ``--noise-multiplier`` the Gaussian noise is given and each cell of the table says what epsilon
a threshold tau and a coordinate bound p buy. With ``--epsilon`` the target is given and each cell
says how much Gaussian noise is still needed. Either way the noise that mixing adds to a coordinate
stands next to the Gaussian noise, in the units of the averaged gradient, and next to both what the
same total variance would give as plain Gaussian noise.

Guarantee
---------
Every epsilon is the certified one of the planned run under add/remove-one with Poisson sampling.

>>> question = MixingQuestion(n=50_000, batch_size=1000, steps=5000, delta=1e-5, max_grad_norm=20,
...     noise_multiplier=0.3633, tau_over_lr=(0.3,), p=(25,))
>>> (row,) = solve(question).rows
>>> print(f"{row.epsilon:.1f}; as plain Gaussian noise {row.epsilon_as_gaussian:.2f}")
5.0; as plain Gaussian noise 1.26
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from winsor.accounting import calibrate
from winsor.contract import ConfigurationError, Neighbouring
from winsor.contrib.modelmix.tradeoff import PlannedRun, modelmix_tradeoff

DEFAULT_P = (1.0, 25.0, 100.0)
DEFAULT_WIDTHS = (0.5, 2.0, 5.0, 10.0)
"""tau/lr over the standard deviation of the noise that the plain run has."""


@dataclass(frozen=True)
class MixingQuestion:
    """A planned run; one of ``noise_multiplier`` and ``epsilon``, one of ``steps`` and ``epochs``.

    ``tau_over_lr`` is in units of the averaged gradient; the default is a range around the noise
    of the plain run. ``p`` are coordinate bounds: 1 for none, else those of ``rules.LInf``.
    """

    n: float
    batch_size: float
    delta: float
    steps: float | None = None
    epochs: float | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    max_grad_norm: float = 1.0
    tau_over_lr: tuple[float, ...] = ()
    p: tuple[float, ...] = DEFAULT_P

    def __post_init__(self) -> None:
        for first, second in (("noise_multiplier", "epsilon"), ("steps", "epochs")):
            if (getattr(self, first) is None) == (getattr(self, second) is None):
                raise ConfigurationError(
                    f"one of {first} and {second} must be given. Got "
                    f"{getattr(self, first)!r} and {getattr(self, second)!r} instead."
                )
        for name in ("n", "batch_size", "noise_multiplier", "epsilon", "steps", "epochs"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"{name} must be positive. Got {value!r} instead.")
            if name in ("n", "steps") and value is not None and value != int(value):
                raise ConfigurationError(f"{name} must be a whole number. Got {value!r} instead.")
        if self.batch_size > self.n:
            raise ConfigurationError(
                f"batch_size must be at most n = {self.n:g}. Got {self.batch_size:g} instead."
            )
        if not all(math.isfinite(width) and width >= 0 for width in self.tau_over_lr):
            raise ConfigurationError(
                f"tau_over_lr must be at least 0. Got {self.tau_over_lr!r} instead."
            )
        if not self.p or not all(math.isfinite(p) and p >= 1 for p in self.p):
            raise ConfigurationError(
                f"p must be at least 1; 1 asks for no coordinate bound. Got {self.p!r} instead."
            )

    @property
    def run_length(self) -> int:
        if self.steps is not None:
            return int(self.steps)
        assert self.epochs is not None
        return max(1, math.ceil(self.epochs * self.n / self.batch_size - 1e-9))

    def run(self, noise_multiplier: float) -> PlannedRun:
        return PlannedRun(
            self.batch_size / self.n,
            noise_multiplier,
            self.run_length,
            self.delta,
            self.max_grad_norm,
            self.batch_size,
        )


@dataclass(frozen=True)
class MixingRow:
    """One cell: deviations are of a coordinate of the averaged gradient."""

    tau_over_lr: float
    p: float
    epsilon: float
    noise_multiplier: float
    gaussian_sd: float
    mixing_sd: float
    total_sd: float
    epsilon_as_gaussian: float


@dataclass(frozen=True)
class MixingAnswer:
    """The plain run, and the cells by rising tau and then rising p."""

    plain_epsilon: float
    plain_noise_multiplier: float
    plain_sd: float
    sampling_rate: float
    steps: int
    delta: float
    solved_for: str
    rows: tuple[MixingRow, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "mechanism": "modelmix",
            "relation": Neighbouring.ADD_OR_REMOVE_ONE.value,
            **dataclasses.asdict(self),
        }


def solve(question: MixingQuestion) -> MixingAnswer:
    """The table of ``question``."""
    noise = question.noise_multiplier
    if noise is None:
        assert question.epsilon is not None
        noise = _calibrated(question, question.epsilon, 0.0, 1.0)
    run = question.run(noise)
    widths = question.tau_over_lr or tuple(w * run.gaussian_sd for w in DEFAULT_WIDTHS)
    cells = [(width, p) for width in sorted(widths) for p in sorted(question.p)]
    if question.epsilon is None:
        rows = _with_given_noise(run, widths, question.p)
    else:
        rows = tuple(_at_epsilon(question, question.epsilon, width, p) for width, p in cells)
    return MixingAnswer(
        plain_epsilon=run.epsilon(run.plain_step(noise)),
        plain_noise_multiplier=noise,
        plain_sd=run.gaussian_sd,
        sampling_rate=run.sampling_probability,
        steps=run.steps,
        delta=run.delta,
        solved_for="epsilon" if question.epsilon is None else "noise_multiplier",
        rows=rows,
    )


def _with_given_noise(
    run: PlannedRun, widths: tuple[float, ...], coordinates: tuple[float, ...]
) -> tuple[MixingRow, ...]:
    return tuple(
        MixingRow(
            tau_over_lr=choice.tau_over_eta,
            p=choice.coordinates,
            epsilon=choice.epsilon,
            noise_multiplier=run.noise_multiplier,
            gaussian_sd=choice.gaussian_sd,
            mixing_sd=choice.mixing_sd,
            total_sd=choice.total_sd,
            epsilon_as_gaussian=choice.epsilon_as_gaussian,
        )
        for choice in modelmix_tradeoff(run, widths, coordinates).choices
    )


def _at_epsilon(question: MixingQuestion, epsilon: float, width: float, p: float) -> MixingRow:
    """The least Gaussian noise that certifies the target next to mixing of ``width``."""
    noise = _calibrated(question, epsilon, width, p)
    return _with_given_noise(question.run(noise), (width,), (p,))[0]


def _calibrated(question: MixingQuestion, epsilon: float, width: float, p: float) -> float:
    def event_of(noise: float) -> Any:
        run = question.run(noise)
        return run.mixed_step(width, p) if width else run.plain_step(noise)

    return calibrate.noise_multiplier(event_of, question.run_length, epsilon, question.delta)


# ------------------------------------------------------------------------------------ the command


def plan(
    n: Annotated[float, typer.Option("--n", help="Records in the dataset.")],
    batch_size: Annotated[float, typer.Option(help="Expected size of a batch.")],
    delta: Annotated[float, typer.Option(help="Target delta.")],
    steps: Annotated[float | None, typer.Option(help="Number of steps.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Gaussian noise, to compute epsilon.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Target, to compute the Gaussian noise that remains.")
    ] = None,
    max_grad_norm: Annotated[float, typer.Option(help="Clipping bound of one record.")] = 1.0,
    tau_over_lr: Annotated[
        list[float] | None,
        typer.Option(help="Mixing threshold over learning rate; may be repeated."),
    ] = None,
    p: Annotated[
        list[float] | None, typer.Option(help="Coordinate bound of rules.LInf; may be repeated.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    mechanism: Annotated[str, typer.Option(hidden=True)] = "modelmix",
) -> None:
    """What mixing iterates buys and costs, over thresholds tau and coordinate bounds p.

    Give --noise-multiplier to see epsilon, or --epsilon to see how much Gaussian noise remains.
    """
    question = MixingQuestion(
        n=n,
        batch_size=batch_size,
        delta=delta,
        steps=steps,
        epochs=epochs,
        noise_multiplier=noise_multiplier,
        epsilon=epsilon,
        max_grad_norm=max_grad_norm,
        tau_over_lr=tuple(tau_over_lr or ()),
        p=tuple(p or DEFAULT_P),
    )
    answer = solve(question)
    if json:
        import json as encoder

        print(encoder.dumps(answer.to_json()))
    else:
        _show(answer)


def _show(answer: MixingAnswer) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"Without mixing: epsilon {answer.plain_epsilon:.4g} at delta {answer.delta:g}, noise "
        f"multiplier {answer.plain_noise_multiplier:.4g}, deviation {answer.plain_sd:.4g} per "
        f"coordinate; {answer.steps} steps at rate {answer.sampling_rate:.4g}."
    )
    table = Table(
        "tau/lr", "p", "epsilon", "multiplier", "Gaussian", "mixing", "total", "x plain",
        "if Gaussian", box=None,
    )  # fmt: skip
    for row in answer.rows:
        table.add_row(
            f"{row.tau_over_lr:.4g}",
            f"{row.p:g}",
            f"{row.epsilon:.4g}",
            f"{row.noise_multiplier:.4g}",
            f"{row.gaussian_sd:.4g}",
            f"{row.mixing_sd:.4g}",
            f"{row.total_sd:.4g}",
            f"{row.total_sd / answer.plain_sd:.2f}",
            f"{row.epsilon_as_gaussian:.4g}",
        )
    console.print(table)
    console.print(
        "Gaussian, mixing and total are standard deviations of a coordinate of the averaged "
        "gradient. The last column is the epsilon of plain DP-SGD with Gaussian noise of the total "
        "deviation: where it is smaller, mixing must earn the difference in the optimisation."
    )

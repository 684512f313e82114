"""Two hundred calibrations: from a budget to noise, steps, rates and batches, digit by digit.

`calibrations.json` beside this file holds the answers, as `float.hex` for numbers, from before the
house was rebuilt. On one machine every digit is reproducible: the accountant draws nothing at
random and adds in a fixed order, so two checkouts must agree in all of them
(`tests/golden/same_bits.py` compares them so). Another processor or another numpy or scipy may sum
in another order, so the test compares numbers within 1e-9 of their value, and whole numbers
exactly.

    python tests/golden/calibrations.py --write     store today's answers
    python tests/golden/calibrations.py --print     one JSON object on standard output
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)

from winsor.core.accounting import account, account_delta, certify, event_from_json, event_to_json
from winsor.core.contract import Bounded, Neighbouring, Sensitivity, WinsorError
from winsor.core.events.joint import BandedEvent, joint_event
from winsor.core.noise.laplace import joint_event as joint_laplace
from winsor.core.sampling.allocation import Allocation, Loader
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson, Sampler
from winsor.planning import calibrate
from winsor.planning.bands import Workload, choose, compare
from winsor.planning.budget import Payment, Target
from winsor.planning.budget import noise_multiplier as within_budget
from winsor.planning.calibrate import Budget
from winsor.tuning.selection import SelectionDpEvent
from winsor.tuning.trial_counts import PoissonTrials, TruncatedNegativeBinomial

STORED = Path(__file__).with_name("calibrations.json")
Row = tuple[str, Any]
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def written(value: Any) -> Any:
    """Floats as texts that keep every digit."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, list | tuple):
        return [written(one) for one in value]
    return value


def answered(question: Callable[[], Any]) -> Any:
    """The answer, or the kind of the refusal."""
    try:
        return written(question())
    except WinsorError as refusal:
        return f"refused: {type(refusal).__name__}"


def noise(event_of: Callable[[float], DpEvent], steps: int, *budget: Any) -> Any:
    history_of = lambda nm: [(event_of(nm), steps)]  # noqa: E731
    return answered(lambda: calibrate.noise_multiplier(history_of, Budget(*budget)))


def event(name: str, **fields: Any) -> DpEvent:
    """An event as ledgers write it: that form outlives every class."""
    return event_from_json({"event": name, **fields})


def allocation(steps: int, nm: float) -> DpEvent:
    return event("allocation", steps=steps, noise_multiplier=nm)


def thresholded(nm: float, delta: float) -> DpEvent:
    return event("thresholded gaussian", noise_multiplier=nm, delta=delta)


def mixed(law: str, nm: float, width: float, p: float) -> DpEvent:
    return event(
        f"mixed_{law}",
        sampling_probability=0.02, noise_multiplier=nm, width_ratio=width, coordinates=p,
    )  # fmt: skip


def bounded(add: float, replace: float, share: float = 1.0, **more: Any) -> Bounded:
    l1, coordinate = more.pop("l1", None), more.pop("coordinate_bound", None)
    sensitivity = Sensitivity(add, replace, "a test", l1=l1, **more)
    return Bounded(None, sensitivity, share, coordinate)


# ------------------------------------------------------------------------------- one event, many


def gaussian() -> Iterator[Row]:
    """Poisson sampling, subsets and whole tables, from a coarse grid of budgets."""
    for epsilon in (0.1, 0.5, 1.0, 3.0, 8.0, 20.0):
        for delta in (1e-3, 1e-5, 1e-8, 1e-12):
            yield (
                f"gaussian: epsilon {epsilon} delta {delta}",
                noise(GaussianDpEvent, 1, epsilon, delta, ADD),
            )
    for rate, steps, epsilon, delta in (
        (1e-4, 1, 1.0, 1e-6), (3e-4, 100_000, 0.5, 1e-8), (1e-3, 1000, 0.1, 1e-5),
        (1e-3, 30_000, 3.0, 1e-12), (0.01, 1, 1.0, 1e-5), (0.01, 100, 8.0, 1e-3),
        (0.01, 1000, 1.0, 1e-5), (0.01, 10_000, 3.0, 1e-5), (0.01, 100_000, 20.0, 1e-6),
        (0.05, 400, 2.0, 1e-7), (0.1, 50, 0.3, 1e-4), (0.1, 1000, 10.0, 1e-5),
        (0.3, 20, 1.0, 1e-6), (0.5, 5, 5.0, 1e-9), (0.9, 100, 4.0, 1e-5),
    ):  # fmt: skip
        for relation in (ADD, REPLACE):
            yield (
                f"poisson: rate {rate} steps {steps} epsilon {epsilon} delta {delta} {relation}",
                noise(
                    lambda nm, rate=rate: PoissonSampledDpEvent(rate, GaussianDpEvent(nm)),
                    steps, epsilon, delta, relation,
                ),
            )  # fmt: skip
    for n, size, steps, epsilon, delta in (
        (1000, 10, 500, 1.0, 1e-5), (60_000, 600, 1000, 3.0, 1e-6), (500, 250, 10, 8.0, 1e-4),
        (10_000, 5, 10_000, 0.5, 1e-8),
    ):  # fmt: skip
        yield (
            f"subset: {size} of {n} steps {steps} epsilon {epsilon}",
            noise(
                lambda nm, n=n, size=size: SampledWithoutReplacementDpEvent(
                    n, size, GaussianDpEvent(nm)
                ),
                steps, epsilon, delta, REPLACE,
            ),
        )  # fmt: skip


def laplace() -> Iterator[Row]:
    for epsilon, delta, steps in (
        (0.1, 1e-5, 1), (1.0, 1e-6, 1), (8.0, 1e-12, 1), (1.0, 1e-5, 20), (3.0, 1e-3, 100),
    ):  # fmt: skip
        yield (
            f"laplace: epsilon {epsilon} delta {delta} steps {steps}",
            noise(LaplaceDpEvent, steps, epsilon, delta, ADD),
        )
    for rate, steps, epsilon in ((0.01, 200, 1.0), (0.1, 30, 4.0)):
        yield (
            f"laplace: rate {rate} steps {steps} epsilon {epsilon}",
            noise(
                lambda nm, rate=rate: PoissonSampledDpEvent(rate, LaplaceDpEvent(nm)),
                steps, epsilon, 1e-5, ADD,
            ),
        )  # fmt: skip
    parts = {"grad": bounded(1.0, 2.0, l1=1.0, coordinate_bound=0.05)}
    for rate, steps, relation in ((0.02, 50, ADD), (0.02, 50, REPLACE), (1.0, 4, ADD)):
        yield (
            f"laplace, bounded coordinates: rate {rate} steps {steps} {relation}",
            noise(
                lambda nm, rate=rate, relation=relation: joint_laplace(parts, nm).poisson(
                    rate, relation
                ),
                steps, 2.0, 1e-5, relation,
            ),
        )  # fmt: skip


def samplers() -> Iterator[Row]:
    """What samplers make of a Gaussian step: the noise of a run of so many steps."""
    half = {"grad": bounded(1.0, 2.0, 0.9), "votes": bounded(0.5, 1.0, 0.1)}
    one = {"grad": bounded(1.0, 2.0)}
    mixed = {"grad": bounded(1.0, 2.0, mixture=((0.25, 1.0), (0.75, 0.4)))}
    asked: tuple[tuple[str, Sampler, dict[str, Bounded], int, int], ...] = (
        ("poisson", Poisson(5000, 0.02), one, 500, 1),
        ("poisson of batch size", Poisson.of_batch_size(60_000, 600), half, 1000, 1),
        ("poisson, mixture of shifts", Poisson(5000, 0.02), mixed, 50, 1),
        ("full", FullBatch(800), one, 100, 1),
        ("full, two parts", FullBatch(800), half, 7, 1),
        ("full, mixture of shifts", FullBatch(800), mixed, 3, 1),
        ("fixed size", FixedSize(2000, 100), one, 200, 1),
        ("fixed size, two parts", FixedSize(2000, 100), half, 200, 1),
        ("allocation", Allocation(3000, 30), one, 90, 1),
        ("allocation, part of an epoch", Allocation.of_batch_size(1000, 64), one, 40, 1),
        ("loader", Loader(1000, 32), one, 96, 1),
        ("loader, last batch dropped", Loader(1000, 32, drop_last=True), half, 100, 1),
        ("cyclic", CyclicPoisson(4000, 8, 0.01), one, 100, 8),
        ("cyclic, half a block", CyclicPoisson(4000, 4, 0.02), half, 99, 4),
        ("cyclic, one group", CyclicPoisson(4000, 1, 0.02), one, 99, 1),
    )
    for name, sampler, parts, steps, bands in asked:
        for relation in (ADD, REPLACE):
            for epsilon, delta in ((1.0, 1e-5), (6.0, 1e-4)):

                def question(
                    sampler: Sampler = sampler,
                    parts: dict[str, Bounded] = parts,
                    relation: Neighbouring = relation,
                    steps: int = steps,
                    budget: tuple[float, float] = (epsilon, delta),
                    bands: int = bands,
                ) -> float:
                    def history_of(nm: float) -> Any:
                        local: Any = joint_event(parts, nm)
                        if bands > 1:
                            local = BandedEvent(bands, local)
                        (found,) = sampler.history(local, relation, steps)
                        return [found]

                    return calibrate.noise_multiplier(history_of, Budget(*budget, relation))

                yield f"sampler {name}: epsilon {epsilon} {relation}", answered(question)


def special() -> Iterator[Row]:
    """Events of winsor's own."""
    for steps, epochs, epsilon in ((10, 1, 1.0), (100, 5, 3.0), (400, 5, 8.0), (59, 10, 0.5)):
        yield (
            f"allocation: {steps} steps, {epochs} epochs, epsilon {epsilon}",
            noise(lambda nm, steps=steps: allocation(steps, nm), epochs, epsilon, 1e-5, ADD),
        )
    for epsilon, delta, relation in ((0.5, 1e-5, ADD), (2.0, 1e-6, ADD), (1.0, 1e-5, REPLACE)):
        yield (
            f"thresholded: epsilon {epsilon} {relation}",
            noise(
                lambda nm, delta=delta: thresholded(nm, delta / 2),
                1, epsilon, delta, relation,
            ),
        )  # fmt: skip
    for law, steps, width, p in (
        ("gaussian", 200, 0.5, 1.0), ("gaussian", 200, 4.0, 25.0), ("gaussian", 20, 4.0, 400.0),
        ("laplace", 100, 0.5, 1.0), ("laplace", 100, 4.0, 25.0),
    ):  # fmt: skip
        yield (
            f"modelmix {law}: {steps} steps, width {width}, p {p}",
            noise(
                lambda nm, law=law, width=width, p=p: mixed(law, nm, width, p),
                steps, 2.0, 1e-5, ADD,
            ),
        )  # fmt: skip

    def alternatives(nm: float) -> DpEvent:
        either = GaussianDpEvent(nm), PoissonSampledDpEvent(0.1, GaussianDpEvent(nm / 3))
        return event("alternatives", events=[event_to_json(one) for one in either])

    yield "alternatives", noise(alternatives, 3, 1.0, 1e-5, ADD)


def tuning() -> Iterator[Row]:
    """The noise of one trial of a tuning within a budget, and what the whole then costs."""
    laws: dict[str, Any] = {
        "logarithmic 10": TruncatedNegativeBinomial.of_mean(10),
        "eta 4 mean 5": TruncatedNegativeBinomial.of_mean(5, 4.0),
        "geometric 50": TruncatedNegativeBinomial.of_mean(50, 1.0),
        "poisson 10": PoissonTrials(10.0),
    }
    for name, law in laws.items():
        yield (
            f"one trial, {name}",
            noise(
                lambda nm, law=law: SelectionDpEvent.of_history(
                    [(GaussianDpEvent(nm), 1), (GaussianDpEvent(20.0), 1)], law
                ),
                1, 2.0, 1e-5, ADD,
            ),
        )  # fmt: skip
        trial = [(PoissonSampledDpEvent(0.02, GaussianDpEvent(2.0)), 200)]
        for relation in (ADD, REPLACE):
            yield (
                f"epsilon of a tuned run, {name} {relation}",
                answered(
                    lambda law=law, r=relation, trial=trial: certify(
                        [(SelectionDpEvent.of_history(trial, law), 1)], 1e-6, r
                    ).epsilon
                ),
            )  # fmt: skip
    for mean, eta in ((3.0, 0.0), (10.0, 0.0), (20.0, 2.0)):
        law = TruncatedNegativeBinomial.of_mean(mean, eta)
        yield f"law of mean {mean} eta {eta}", written([law.gamma, law.mean, law.generating(0.5)])


def limits() -> Iterator[Row]:
    """Steps, rates, batches and numbers of records that a budget allows."""

    def sampled(rate: float, nm: float) -> DpEvent:
        return PoissonSampledDpEvent(rate, GaussianDpEvent(nm))

    for rate, nm, epsilon in ((0.01, 1.0, 3.0), (0.001, 0.7, 1.0), (0.1, 4.0, 8.0), (1.0, 30, 2.0)):
        event = GaussianDpEvent(nm) if rate == 1 else sampled(rate, nm)
        yield (
            f"most steps: rate {rate} noise {nm} epsilon {epsilon}",
            answered(lambda e=event, eps=epsilon: calibrate.max_steps(e, Budget(eps, 1e-5))),
        )
    for nm, steps, epsilon in ((1.0, 1000, 1.0), (0.8, 100, 4.0), (5.0, 10_000, 2.0)):
        history = lambda q, nm=nm, steps=steps: [(sampled(q, nm), steps)]  # noqa: E731
        yield (
            f"rate: noise {nm} steps {steps} epsilon {epsilon}",
            answered(lambda h=history, eps=epsilon: calibrate.sampling_rate(h, Budget(eps, 1e-5))),
        )
    yield (
        "batch size",
        answered(
            lambda: calibrate.batch_size(
                lambda b: [(sampled(b / 50_000, 1.1), 2000)], 50_000, Budget(2.0, 1e-5)
            )
        ),
    )
    yield (
        "records",
        answered(
            lambda: calibrate.least_records(
                lambda n: [(sampled(min(1.0, 256 / n), 1.0), 3000)], Budget(2.0, 1e-6), least=256
            )
        ),
    )


# -------------------------------------------------------------------------- histories and budgets


def histories() -> Iterator[Row]:
    """Several events in one budget: epsilon at delta, and delta at epsilon."""
    gaussian, half = GaussianDpEvent(4.0), PoissonSampledDpEvent(0.02, GaussianDpEvent(1.2))
    histories: dict[str, list[tuple[DpEvent, int]]] = {
        "gaussian and sampled": [(gaussian, 3), (half, 300)],
        "two rates": [(half, 100), (PoissonSampledDpEvent(0.05, GaussianDpEvent(2.0)), 40)],
        "gaussian and laplace": [(gaussian, 2), (LaplaceDpEvent(3.0), 2)],
        "allocation and gaussian": [(allocation(20, 1.5), 3), (gaussian, 1)],
        "thresholded and gaussian": [(thresholded(5.0, 1e-7), 2), (gaussian, 2)],
        "long": [(PoissonSampledDpEvent(0.001, GaussianDpEvent(0.9)), 100_000)],
    }
    for name, history in histories.items():
        for delta in (1e-4, 1e-6):
            yield (
                f"history {name}: epsilon at {delta}",
                answered(lambda h=history, d=delta: account(h, d).epsilon),
            )
            yield (
                f"history {name}: certified at {delta}",
                answered(lambda h=history, d=delta: certify(h, d).epsilon),
            )
        yield (
            f"history {name}: delta at 1.5",
            answered(lambda h=history: account_delta(h, 1.5).delta),
        )


def budgets() -> Iterator[Row]:
    """Plans of several releases: the one multiplier at which they spend a target."""
    one, other = Sensitivity(1.0, 2.0, "a test"), Sensitivity(0.3, 0.3, "a test")
    full, some = FullBatch(1000), Poisson(1000, 0.05)
    plans: dict[str, list[Payment]] = {
        "one": [Payment(full, one, 1)],
        "ten": [Payment(full, one, 10)],
        "shares": [Payment(full, one, 1, 1.5), Payment(full, other, 4, 2.0)],
        "sampled": [Payment(some, one, 200)],
        "sampled and whole": [Payment(some, one, 100), Payment(full, other, 2, 3.0)],
        "fixed": [Payment(FixedSize(1000, 50), one, 60)],
        "loader": [Payment(Loader(1000, 50), one, 4)],
    }
    for name, plan in plans.items():
        for relation in (ADD, REPLACE):
            for target in (Target(1.0, 1e-5, None, relation), Target(None, 1e-6, 0.05, relation)):
                budget = f"epsilon {target.epsilon}" if target.rho is None else f"rho {target.rho}"
                yield (
                    f"budget {name}: {budget} {relation}",
                    answered(lambda p=plan, t=target: within_budget(p, t)),
                )


def bands() -> Iterator[Row]:
    """How many bands correlated noise should have, and the noise of each number."""
    for row in compare(Workload(200, 0.9), 0.02, 4.0, 1e-5, (1, 2, 4, 8)):
        yield f"bands {row.bands}: noise", written(row.noise_multiplier)
        yield f"bands {row.bands}: error", written(row.relative_error)
        yield f"bands {row.bands}: column", written(row.column)
    best = choose(Workload(100), 0.05, 8.0, 1e-5)
    yield "bands chosen", [best.bands, best.noise_multiplier.hex()]


FAMILIES: tuple[Callable[[], Iterator[Row]], ...] = (
    gaussian, laplace, samplers, special, tuning, limits, histories, budgets, bands,
)  # fmt: skip


def values(families: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Name -> number, written so that no digit is lost."""
    chosen = [one for one in FAMILIES if families is None or one.__name__ in families]
    return {f"{one.__name__}/{name}": value for one in chosen for name, value in one()}


def main() -> None:
    found = values()
    if "--print" in sys.argv:
        print(json.dumps(found))
        return
    if "--write" in sys.argv:
        STORED.write_text(json.dumps(found, indent=0) + "\n")
    print(f"{len(found)} calibrations")


if __name__ == "__main__":
    main()

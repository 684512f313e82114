"""`winsor reproduce sco`: the rates of paper 2 against its theory, and Theorem 6 against the truth.

* ``rates``: the slope of the worst-case excess risk in n (`rates.py`), whose theory is
  -(1 - 1/p) where privacy dominates. *published* is the paper's noise: that of (12) for simple
  clipping, which is sound but larger than epsilon needs; for iterative updating that of the T-step
  budget (27) with Theorem 6 at every step. The geometric median of the same group means stands
  beside them: it is what iterative updating competes with.
* ``theorem-6``: what the theorem claims for one round of k group means at its largest allowed rho,
  and what the same noise certifies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import geometric_mean

from dp_accounting.dp_event import GaussianDpEvent

from winsor.core.accounting import account
from winsor.core.contract import Neighbouring
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.sco.rates import METHODS, Curve, RateExperiment, risk_curves
from winsor_papers.sco.claim import (
    largest_epsilon,
    parallel_history,
    theorem_6_claim,
    theorem_6_rho,
)

MOMENTS = (2, 4, 8)
TOLERANCE = 0.1
"""How far a slope may be from the theory's, which ignores logarithms, and still agree."""

_QUICK = RateExperiment(seeds=4)
_FULL = {
    10: RateExperiment(d=10, epsilon=0.05, sizes=(2000, 20_000, 200_000), seeds=2),
    100: RateExperiment(d=100, epsilon=0.1, sizes=(1000, 10_000, 100_000), seeds=2),
    1000: RateExperiment(d=1000, epsilon=0.3, sizes=(800, 8000, 80_000), seeds=2),
}
"""Two decades of n where privacy dominates; a larger epsilon where more is to be learnt."""
_REPEATS = 5


def rates_10(request: Request) -> Reproduced:
    """d = 10; the smoke run has d = 3 and no second relation."""
    return _rates(10, MOMENTS, METHODS, request)


def rates_100(request: Request) -> Reproduced:
    return _rates(100, MOMENTS, METHODS, request)


def rates_1000(request: Request) -> Reproduced:
    """Without the start at zero and without p = 8: the rows alone are 640 MB."""
    return _rates(1000, MOMENTS[:2], tuple(m for m in METHODS if "zero" not in m), request)


def _rates(
    d: int, moments: tuple[int, ...], methods: tuple[str, ...], request: Request
) -> Reproduced:
    if request.quick:
        return rates_of(_QUICK, request.seeds_or(2, 2), moments[:1], request)
    return rates_of(_FULL[d], request.seeds_or(2, _REPEATS), moments, request, methods, both=True)


def rates_of(
    setting: RateExperiment,
    repeats: range,
    moments: tuple[int, ...],
    request: Request,
    methods: tuple[str, ...] = METHODS,
    both: bool = False,
) -> Reproduced:
    """Slopes of the methods; each repetition has data and noise of its own.

    ``both`` adds simple clipping and iterative updating when one record is replaced.
    """
    replaced = replace(setting, relation=Neighbouring.REPLACE_ONE)
    shown = [(method, setting) for method in methods]
    shown += [(method, replaced) for method in PAPERS_OWN if both]
    lines = []
    for p in moments:
        curves = _curves(p, shown, repeats, request)
        lines += [_line(method, p, at, curves) for method, at in shown]
    count = len(setting.sizes)
    return Reproduced(
        f"Rates of paper 2 (Theorems 4 and 7), d = {setting.d}",
        "slope of log(excess risk) in log(n)",
        tuple(lines),
        rates_verdict(lines, f"{RISK}{setting.sizes[-1]:,}"),
        {**asdict(setting), "relation": "both" if both else "add_or_remove_one",
         "repetitions": len(repeats)},
        (
            "The paper has no experiment: the printed figure is the exponent of its bound. The "
            "bound is over the worst problem, so the risk is the largest over sizes of the mean.",
            "Published noise is (12) for simple clipping and (27) with Theorem 6 for iterative "
            "updating, both made for the replacement of a record.",
            "Iterative updating starts outside the group means, in a corner of the box around "
            "them, or at zero; t_c is that of Lemma 8. It ends at the edge of their bulk; the "
            "geometric median of the same group means is in its middle and needs no update.",
            "Fixed groups cost sqrt(k) in noise by parallel composition: Theorem 6 is what would "
            f"win it back. Here k = {setting.groups}, sqrt(k) = {math.sqrt(setting.groups):.2f}.",
            f"{count} sizes from {setting.sizes[0]:,} to {setting.sizes[-1]:,}; {len(repeats)} "
            f"repetitions of {setting.seeds} data sets each.",
        ),
    )  # fmt: skip


PAPERS_OWN = ("simple", "iterative")
RISK = "risk at n = "


Run = tuple[str, RateExperiment]
Curves = dict[Run, list[Curve]]
"""One curve per repetition."""


def _curves(p: int, shown: Sequence[Run], repeats: range, request: Request) -> Curves:
    """Everything that the lines of one p need; all of a repetition meet the same rows."""
    claimed = [(method, replace(at, printed=True)) for method, at in shown if _claims(method, at)]
    runs = [*shown, *claimed]
    found: Curves = {run: [] for run in runs}
    for repeat in repeats:
        request.say(f"p = {p}, repetition {repeat}")
        moved = [(method, replace(at, first_seed=repeat * at.seeds)) for method, at in runs]
        for run, curve in zip(runs, risk_curves(moved, p), strict=True):
            found[run].append(curve)
    return found


def _claims(method: str, setting: RateExperiment) -> bool:
    """Does the line have a published run beside it?"""
    return method in PAPERS_OWN and setting.relation is not Neighbouring.REPLACE_ONE


def _line(method: str, p: int, setting: RateExperiment, curves: Curves) -> Line:
    certified, risks, updates = _slopes(curves[method, setting])
    published = None
    replaced = setting.relation is Neighbouring.REPLACE_ONE
    if _claims(method, setting):
        published, _, _ = _slopes(curves[method, replace(setting, printed=True)])
    return Line(
        {"p": str(p), "method": method, "a record is": "replaced" if replaced else "added"},
        printed=f"{-(1 - 1 / p):.3f} (theory)",
        published=published,
        certified=certified,
        certified_epsilon=setting.epsilon,
        published_certifies=None if published is None else printed_noise_epsilon(setting, method),
        extra={
            f"{RISK}{setting.sizes[-1]:,}": str(risks[-1]),
            "risk by n": " ".join(f"{risk.mean:.4g}" for risk in risks),
            "updates per gradient": "" if updates is None else f"{updates:.1f}",
        },
    )


def _slopes(curves: Sequence[Curve]) -> tuple[Measured, list[Measured], float | None]:
    """The slope, the risk at every n, and the updates per gradient."""
    slopes = Measured.of([curve.slope for curve in curves])
    counted = [curve.updates for curve in curves if curve.updates is not None]
    mean = sum(counted) / len(counted) if counted else None
    risks = [Measured.of(values) for values in zip(*(c.risks for c in curves), strict=True)]
    return slopes, risks, mean


def printed_noise_epsilon(setting: RateExperiment, method: str = "simple") -> float:
    """What the noise of (12), or of (27) with Theorem 6, certifies, add or remove.

    The paper counts a replaced record, which moves a mean twice as far as one that is added.
    """
    ((event, steps),) = setting.theorem(method).certified_history()
    assert isinstance(event, GaussianDpEvent)
    added = GaussianDpEvent(2 * event.noise_multiplier)
    return account([(added, steps)], setting.delta).epsilon


def rates_verdict(lines: list[Line], risk: str) -> str:
    """How many slopes the theory's exponent is compatible with, and the risks against each other.

    The exponent is that of an upper bound: a slope that is steeper does not contradict it, one that
    is flatter by more than the logarithms (`TOLERANCE`) and the interval does.
    """
    agree, flatter, blurred = [], [], []
    for line in lines:
        assert line.certified is not None and line.printed is not None
        gap = line.certified.mean - float(line.printed.split()[0])
        half = line.certified.half_width or math.inf
        if gap - half > TOLERANCE:
            flatter.append(line)
        elif half > 3 * TOLERANCE:
            blurred.append(line)
        else:
            agree.append(line)
    widths = [line.certified.half_width or math.inf for line in lines if line.certified]
    word = "not reproduced at our size" if flatter else "undecided" if blurred else "reproduced"
    return (
        f"Rate {word}: {len(agree)} of {len(lines)} certified slopes are as steep as the theory's "
        f"or steeper, {len(flatter)} are flatter, {len(blurred)} too uncertain; smallest gap in a "
        f"slope that could have been seen {min(widths) + TOLERANCE:.2f} to "
        f"{max(widths) + TOLERANCE:.2f}. {_ratios(lines, risk)}"
    )


def _ratios(lines: list[Line], risk: str) -> str:
    """The risk of iterative updating over that of every other method, geometric mean over p."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line.label["a record is"] == "added":
            value = float(line.extra[risk].split()[0])
            found.setdefault(line.label["method"], []).append(value)
    means = {method: geometric_mean(values) for method, values in found.items()}
    ours = means.pop("iterative")
    parts = ", ".join(f"{ours / value:.2g} times that of {name}" for name, value in means.items())
    return f"The risk of iterative updating at the largest n is {parts}."


# ------------------------------------------------------------------------------------- Theorem 6

GROUPS = (1_000, 100_000, 1_000_000)
DELTA = 1e-5


def theorem_6(request: Request) -> Reproduced:
    """Published against certified epsilon of one round; a calculation, the same quick or full."""
    lines = []
    for k in GROUPS:
        rho = theorem_6_rho(largest_epsilon(k, DELTA), DELTA, k)
        claim = theorem_6_claim(rho, DELTA, k)
        true = account(parallel_history(rho), DELTA).epsilon
        lines.append(
            Line(
                {"groups": f"{k:,}"},
                published=Measured.of([claim.published_epsilon]),
                certified=Measured.of([true]),
                extra={"rho": f"{rho:.3g}"},
            )
        )
    return Reproduced(
        "Theorem 6 of paper 2 (amplification by an estimator that ignores the order)",
        f"epsilon of one round at delta {DELTA:g}",
        tuple(lines),
        theorem_6_verdict(lines),
        {"delta": DELTA, "groups": GROUPS},
        (
            "rho is the largest that the theorem allows for this number of groups.",
            "Certified is parallel composition: one record touches one group mean. It is attained "
            "by an order-free estimator (the smallest group mean), so a smaller claim is false.",
        ),
    )


def theorem_6_verdict(lines: list[Line]) -> str:
    """Where the claim is below the truth it is false; where it is above, it is of no use."""
    false: list[str] = []
    useless: list[str] = []
    for line in lines:
        assert line.published is not None and line.certified is not None
        below = line.published.mean < line.certified.mean
        (false if below else useless).append(line.label["groups"])
    parts = []
    if false:
        parts.append(f"claims less than the truth for {', '.join(false)} groups")
    if useless:
        parts.append(f"is weaker than no amplification for {', '.join(useless)} groups")
    return f"Does not hold: it {' and '.join(parts)}." if false else f"No gain: it {parts[0]}."

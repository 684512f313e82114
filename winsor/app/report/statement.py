"""The privacy statement: what is promised, to whom, and what is not.

Written from the ledger, the configuration and the accountant, for a reader who did not train the
model. Every epsilon in it is certified and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from dp_accounting.dp_event import DpEvent

from winsor.app.runs.config import Config
from winsor.app.runs.reading import Part
from winsor.app.runs.summary import rounded_up
from winsor.core.accounting import Spent
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.guarantee import delta_by, spent_by
from winsor.core.ledger.ledger import Ledger

RELATIONS = {
    Neighbouring.ADD_OR_REMOVE_ONE: "adding or removing one {who}",
    Neighbouring.REPLACE_ONE: "replacing one {who} by any other",
}
ACCOUNTANTS = {
    "pld": "privacy loss distributions, discretised pessimistically",
    "rdp": "Renyi differential privacy",
}


@dataclass(frozen=True)
class Statement:
    """Texts and numbers; the page and the JSON say the same."""

    promise: str
    meaning: str
    unit: str
    relation: str
    epsilons: tuple[dict[str, Any], ...]
    """(delta, epsilon) pairs, all of them true at once."""
    steps: int
    sampler: str
    mechanism: str
    rule: str
    accountant: str
    ledger_sha256: str
    ledger_head: str
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def make_statement(
    config: Config,
    ledger: Ledger,
    versions: dict[str, str],
    finished: bool,
    held_out_rows: int | None,
) -> Statement:
    """Write the statement of one run.

    ``held_out_rows`` is their number, None if it is not known yet.
    """
    relation = Neighbouring(config.budget.relation)
    spent = [spent_by(ledger.history(), delta, relation) for delta in _deltas(config)]
    return Statement(
        promise=_promise(spent[0], relation, ledger),
        meaning=meaning(ledger.history(), relation, who_is_protected(ledger)),
        unit=_unit(ledger),
        relation=RELATIONS[relation].format(who=who_is_protected(ledger)),
        epsilons=tuple(
            {"delta": s.delta, "epsilon": s.epsilon, "shown": rounded_up(s.epsilon)} for s in spent
        ),
        steps=len(ledger),
        sampler=_sampler(ledger),
        mechanism=_mechanism(ledger),
        rule=str(ledger.config["rule"]),
        accountant=_accountant(spent[0], versions),
        ledger_sha256=ledger.digest(),
        ledger_head=ledger.head,
        covered=_covered(config, len(ledger), held_out_rows != 0),
        not_covered=_not_covered(held_out_rows, who_is_protected(ledger)),
        warnings=_warnings(config, finished),
    )


def _deltas(config: Config) -> list[float]:
    return [config.budget.delta / 10**k for k in range(4)]


def who_is_protected(ledger: Ledger) -> str:
    """Whom the guarantee is for: a row, or a person with all rows."""
    return ledger.about["unit"]


def _unit(ledger: Ledger) -> str:
    n, most = ledger.config["n"], ledger.config.get("rows_per_unit")
    if most is None:
        return f"one row of the training data ({n:,} rows; their number is treated as public)"
    return (
        f"one person with all rows, up to {most} of them in a step ({n:,} persons; their number is "
        "treated as public, how many rows a person has is not)"
    )


def _promise(spent: Spent, relation: Neighbouring, ledger: Ledger) -> str:
    return (
        f"The training was ({rounded_up(spent.epsilon)}, {spent.delta:.3g})-differentially private "
        f"with respect to {RELATIONS[relation].format(who=who_is_protected(ledger))}, over all "
        f"{len(ledger):,} recorded steps."
    )


def meaning(history: Iterable[tuple[DpEvent, int]], relation: Neighbouring, who: str) -> str:
    """State the promise as a game.

    The best guess is right with probability (1 + TV)/2, and the total variation TV is the certified
    delta at epsilon 0.
    """
    variation = delta_by(history, 0.0, relation).delta
    percent = min(100.0, math.ceil(1000 * (1 + variation) / 2) / 10)
    question = (
        f"whether a given {who} took part"
        if relation is Neighbouring.ADD_OR_REMOVE_ONE
        else f"which of two given {who}s took part"
    )
    return (
        f"Someone knows every other {who}, sees everything that was released, and must tell "
        f"{question}. Guessing blindly is right half of the time. Whatever the rows, the method "
        f"and the computing power, nobody is right more often than {percent:g} % of the time."
    )


def _sampler(ledger: Ledger) -> str:
    c = ledger.config
    match c["sampler"]:
        case "Poisson":
            return f"Poisson: every row joins each batch independently, with rate {c['rate']:.6g}"
        case "FixedSize":
            return f"batches of fixed size, drawn uniformly, rate {c['rate']:.6g}"
        case "Allocation":
            steps = round(1 / c["rate"])
            return f"allocation: every row goes to one step of each epoch of {steps} steps, by lot"
        case "Loader":
            return (
                f"a loader: every row once an epoch, {c['batch_size']} at a time, no amplification"
            )
        case "CyclicPoisson":
            return (
                f"cyclic Poisson: rows in {c['bands']} groups that take turns, each row of the "
                f"group with probability {min(1.0, c['bands'] * c['rate']):.6g}"
            )
    return "all rows at every step"


def _mechanism(ledger: Ledger) -> str:
    c = ledger.config
    name = c.get("mechanism", "Gaussian")
    bands = f", correlated over {len(c['column'])} steps" if "column" in c else ""
    return f"{name} noise, noise multiplier {c['noise_multiplier']:.6g}{bands}"


def _accountant(spent: Spent, versions: dict[str, str]) -> str:
    method = ACCOUNTANTS.get(spent.accountant, spent.accountant)
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{method} ({listed})"


def _covered(config: Config, steps: int, held_out: bool) -> tuple[str, ...]:
    items = [
        f"the gradients released in {steps:,} steps, hence the final model, every model along the "
        "way, and everything computed from them without the training data",
    ]
    if held_out:
        items.append("metrics on held-out rows, as far as the training rows are concerned")
    if config.record.monitor == "private":
        items.append("the histograms of gradient norms, which are released with the gradients")
    items += _released_by(config.rule)
    return tuple(items)


def _released_by(rule: Part) -> Iterator[str]:
    """Yield what the rule says it releases beside gradients."""
    try:
        from winsor.app.runs.parts import build_rule  # loads torch, which nothing else here needs

        state = getattr(build_rule(rule), "releases_state", "")
    except (ConfigurationError, ModuleNotFoundError):  # archived since, or torch is not installed
        yield f"what else the rule {rule.name} released with the gradients (it is not known here)"
        return
    if state:
        yield f"{state}, which are released with the gradients"


def _not_covered(held_out_rows: int | None, who: str) -> tuple[str, ...]:
    items = []
    if held_out_rows != 0:
        number = "" if held_out_rows is None else f"{held_out_rows:,} "
        items.append(
            f"the {number}held-out rows: their metrics are exact, so these rows are not "
            "protected. Use rows that may be known, or keep the metrics to yourself"
        )
    items += [
        "choices made by looking at the same rows before: features, scaling constants, rule, "
        "learning rate, the number of steps",
        "other runs on the same rows. Their losses add up; a report of several runs shows the sum",
        "groups of rows. If one person has k rows, the promise for the person is weaker: k times "
        "epsilon, at a larger delta. data.unit protects persons"
        if who == "row"
        else "persons that have several identifiers, and what rows of one person say of another",
        "checkpoint.pt, while it exists: it holds the key of the noise and must be guarded like "
        "the data. It is deleted when a run finishes, unless keep_checkpoint is set",
        "attacks on the low bits of floating-point noise, and on the computer itself (time, "
        "memory, network)",
    ]
    return tuple(items)


def _warnings(config: Config, finished: bool) -> tuple[str, ...]:
    items = []
    if not finished:
        items.append("The run is not finished. The numbers are for the steps so far.")
    if config.reproducible_noise:
        items.append(
            "The noise was derived from the seed in the configuration (reproducible_noise). The "
            "promise holds only towards those who do not know the seed. For a model that is "
            "released, train again without it."
        )
    if config.record.exposes:
        items.append(
            "Exact values of private rows were recorded (record.monitor = debug). They are marked "
            "NOT PRIVATE; whoever sees them, or this report, sees more than the promise covers."
        )
    if config.budget.allow_large_delta:
        items.append("delta was allowed to reach 1/n, where publishing one whole row would pass.")
    return tuple(items)

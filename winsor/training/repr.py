"""How a private training shows itself: a few lines of text, a card in a notebook.

Everything shown is public or released: the plan, the account, the rule, and, if the run has a
private monitor, what it has released about clipping.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from winsor.charts import notebook_html as cards
from winsor.core.contract import Guarantee, WinsorError
from winsor.rules.monitor import PrivateMonitor

if TYPE_CHECKING:
    from winsor.training.loop import PrivateTraining


def in_text(private: PrivateTraining) -> str:
    """Describe a run in four lines: what is trained, what was spent, how, and what was seen of
    clipping."""
    spent, refused = _spent(private)
    account = refused or _account(private, spent)
    how = "  ".join(f"{name} {value}" for name, value in _settings(private).items())
    lines = [_title(private), account, how, _clipping(private)]
    return "\n  ".join(line for line in lines if line)


def as_card(private: PrivateTraining) -> str:
    """Describe a run as HTML for notebooks: account, settings, parameters, conditions."""
    spent, refused = _spent(private)
    done, planned = private.steps_done, private.budget.planned_steps
    target = private.budget.epsilon
    share = done / planned if target is None else (spent.epsilon if spent else 0.0) / target
    layers = [
        (name, " x ".join(map(str, p.shape)), f"{p.numel():,}")
        for name, p in private._update.parameters.items()
    ]
    settings = {**_settings(private), "relation": private.relation.value.replace("_", " ")}
    clipping = _clipping(private)
    if clipping:
        settings["private monitor"] = clipping
    return cards.card(
        _title(private),
        cards.sentence(refused) if refused else cards.bar(share, _account(private, spent)),
        cards.pairs(settings),
        cards.table("trained parameters", ("name", "shape", "numbers"), layers),
        cards.folded("what the guarantee rests on", spent.conditions if spent else ()),
    )


def _spent(private: PrivateTraining) -> tuple[Guarantee | None, str]:
    """Return what is certified; or, of a run that was tampered with, why nothing is."""
    try:
        return private.spent(), ""
    except WinsorError as error:
        return None, f"nothing is certified: {error}"


def _title(private: PrivateTraining) -> str:
    size = sum(p.numel() for p in private._update.parameters.values())
    return (
        f"PrivateTraining of {type(private.model).__name__}, {size:,} trained parameters, step "
        f"{private.steps_done} of {private.budget.planned_steps}"
    )


def _account(private: PrivateTraining, spent: Guarantee | None) -> str:
    if spent is None:
        return ""
    target = private.budget.epsilon
    of = "" if target is None else f" of {target:g}"
    return f"epsilon {spent.epsilon:.4g}{of} spent at delta {spent.delta:g}"


def _settings(private: PrivateTraining) -> dict[str, str]:
    return {
        "rule": repr(private.rule),
        "noise multiplier": f"{private.noise_multiplier:.4g}",
        "batches": str(private.sampler),
    }


def _clipping(private: PrivateTraining) -> str:
    """Read the monitor's releases; a debugging monitor, which is exact, is not asked."""
    rule = private.rule
    if not isinstance(rule, PrivateMonitor) or private.steps_done == 0:
        return ""
    try:
        return str(rule.reading(private.rule_state))
    except (WinsorError, ArithmeticError):  # too little was released to say anything
        return ""

"""Attacks on published claims: what they have in common.

Each attack (``attacks.py`` in the folder of its paper) runs the real rule with the noise that the
paper adds, on two neighbouring datasets chosen against the paper's argument, and measures a lower
bound on epsilon. VIOLATED means that the bound exceeds the claim (or that the claim fails at its
own point), with the audit's confidence; *not violated by this attack* means no more than it says.
Every claim is read in the way most favourable to its paper, as documented beside it.

Most are one step on the full batch: what breaks is the sensitivity, not the composition.
"""

from __future__ import annotations

from dp_accounting.dp_event import DpEvent

from winsor.audit.claims import point_claim
from winsor.audit.curve import Experiment
from winsor.audit.suite import Prepared
from winsor.core.contract import Neighbouring
from winsor_papers.published import PublishedClaim

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
DELTA = 1e-5


def attack(
    experiment: Experiment,
    claim: PublishedClaim,
    adversary: str,
    law: DpEvent | None,
    relation: Neighbouring = ADD,
) -> Prepared:
    """``law`` is the exact law of the instance, if it has a name."""
    return Prepared(
        experiment,
        point_claim(claim.published_epsilon, claim.delta, str(claim)),
        adversary,
        None if law is None else [(law, 1)],
        relation,
        delta=claim.delta,
        published=True,
    )

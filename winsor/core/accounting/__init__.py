"""Certified (epsilon, delta) from histories of events. Pure functions; no torch.

`account` says what a history has spent, and `register` makes a new type of event known. Importing
this package registers every event of `winsor.core.events`; events from elsewhere are found by the
entry points of the group ``winsor.events`` when a ledger names them.
"""

from winsor.core.accounting.spending import (
    Spent,
    account,
    account_delta,
    certify,
    certify_delta,
    delta_curve,
    epsilon_curve,
)
from winsor.core.events import (
    allocation,
    alternatives,
    builtin,
    mixed,
    thresholded,
)
from winsor.core.events.registry import (
    Entry,
    Grid,
    History,
    event_from_json,
    event_to_json,
    flatten,
    register,
    registered,
)

__all__ = [
    "Entry",
    "Grid",
    "History",
    "Spent",
    "account",
    "account_delta",
    "allocation",
    "alternatives",
    "builtin",
    "certify",
    "certify_delta",
    "delta_curve",
    "epsilon_curve",
    "event_from_json",
    "event_to_json",
    "flatten",
    "mixed",
    "register",
    "registered",
    "thresholded",
]

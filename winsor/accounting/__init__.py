"""Certified (epsilon, delta) from histories of events. Pure functions; no torch.

`account` says what a history has spent, the functions of `calibrate` find the noise, the number of
steps or the sampling rate that a budget allows, and `register` makes a new type of event known.
Importing this package registers every event of winsor (`builtin`, `widened`,
`allocation`, `selection`, `alternatives`, `thresholded`), so that any ledger can be read.
"""

from winsor.accounting import (
    allocation,
    alternatives,
    builtin,
    calibrate,
    selection,
    thresholded,
    widened,
)
from winsor.accounting.events import (
    Entry,
    Grid,
    History,
    event_from_json,
    event_to_json,
    flatten,
    register,
    registered,
)
from winsor.accounting.spending import (
    Spent,
    account,
    account_delta,
    certify,
    certify_delta,
    delta_curve,
    epsilon_curve,
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
    "calibrate",
    "certify",
    "certify_delta",
    "delta_curve",
    "epsilon_curve",
    "event_from_json",
    "event_to_json",
    "flatten",
    "register",
    "registered",
    "selection",
    "thresholded",
    "widened",
]

"""Issue 37, case by case: what the books say of uses that told them something else.

    python benchmarks/books.py [--before DIR]      this checkout beside another

A row is a function in `ROWS`. It returns what is observed, or raises: an error is shown by its
class. Add rows with `@row("case", "what is true")`.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from bounded_sums import beside, elsewhere
from sklearn import calibration, ensemble, feature_selection, model_selection, semi_supervised

import winsor
from winsor.core.sampling.units import UnitRows
from winsor.metrics import Accuracy, measure
from winsor.tables import PrivacyBudget, PrivateLogisticRegression, estimator, total_guarantee
from winsor.tables.means import clipped_mean

ROWS: dict[str, tuple[str, Callable[[], Any]]] = {}
PERSONS, NAN = [i % 64 for i in range(512)], float("nan")
X = np.random.default_rng(0).normal(size=(512, 3))
Y = (X[:, 0] > 0).astype(int)
warnings.simplefilter("ignore")


def row(case: str, truth: str) -> Callable[[Callable[[], Any]], None]:
    """Add a function to the table."""
    return lambda observe: ROWS.update({case: (truth, observe)})


def run(**options: Any) -> Any:
    """A training of 512 rows, with one step on all of them."""
    model = torch.nn.Linear(3, 2)
    rows = torch.utils.data.TensorDataset(torch.tensor(X).float(), torch.tensor(Y))
    private = winsor.make_private(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=rows,
        rule=winsor.rules.Flat(1.0), batch_size=64 if "unit" in options else 512, delta=1e-4,
        **{"noise_multiplier": 4.0, "steps": 1, "sampling": "full", **options},
    )  # fmt: skip
    for inputs, labels in private.batches(1):
        losses = torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none")
        private.step(losses)
    return private


AFTER = {"epsilon": 2.0, "noise_multiplier": None, "after_in_ledger": True}
row("total(rows, persons)", "no sum")(lambda: winsor.total(run(), run(unit=PERSONS)).epsilon)
row("after=[rows], unit=", "no sum")(
    lambda: run(unit=PERSONS, after=[run()], **AFTER).spent().epsilon
)


@row("measure() in the ledger of a mean of persons", "no sum")
def _() -> Any:
    book = clipped_mean(X, unit=PERSONS, epsilon=1.0, radius=1.0).ledger
    return measure(Accuracy(), targets=Y, predictions=Y, epsilon=1.0, ledger=book).guarantee.epsilon


def units_of(person: Any, ids: Any) -> str:
    """In how many units the rows of a person are."""
    units = UnitRows(ids, 1)
    return f"{len({units.unit_of(i) for i, one in enumerate(ids) if one == person})} units"


OBJECTS = np.array([7.0, NAN, 3.0, 7.0, NAN, 5.0, 7.0, NAN, 7.0, 1.0], object)
row("ids: NaN among objects", "refused")(lambda: units_of(7.0, OBJECTS))
row("ids: NaN in a list of texts", "refused")(lambda: units_of("nan", ["a", NAN, "nan"]))


def continued(changed: Any, unit: Any = None, **first: Any) -> Any:
    """Epsilon of a fit that goes on after `set_params`."""
    model = PrivateLogisticRegression(**first).fit(X, Y, unit=unit)
    return model.set_params(**changed).partial_fit(X, Y).epsilon_


OTHER, WIDER = {"relation": "add_or_remove_one"}, {"bounds": (-9, 9)}
row("set_params(relation=).partial_fit", "2.252")(lambda: continued(OTHER, relation="replace_one"))
row("set_params(bounds=).partial_fit", "refused")(lambda: continued(WIDER, bounds=(-1, 1)))
row("fit(unit=).partial_fit", "no sum")(lambda: continued({}, unit=PERSONS))


def composite(kind: Any, **options: Any) -> None:
    """Add a row: how many fits inside a composite of scikit-learn `total_guarantee` counts."""

    def observe() -> str:
        fits, one = [], PrivateLogisticRegression()
        inner = [("a", one)] if "Stacking" in kind.__name__ else one
        with mock.patch.object(estimator, "count_fit", lambda one, *rest: fits.append(one)):
            whole = kind(inner, **options).fit(X, Y)
        return f"{total_guarantee(whole).steps // len(fits[0].ledger_)} of {len(fits)} fits"

    row(f"total_guarantee({kind.__name__})", "all fits, or refused")(observe)


composite(feature_selection.RFE, n_features_to_select=1)
for each in (
    calibration.CalibratedClassifierCV, ensemble.BaggingClassifier, ensemble.StackingClassifier,
    model_selection.TunedThresholdClassifierCV, semi_supervised.SelfTrainingClassifier,
):  # fmt: skip
    composite(each)


@row("PrivacyBudget(epsilon=3.0), 11 fits at 1.0", "refused at 3.0")
def _() -> Any:
    model = PrivateLogisticRegression(budget=PrivacyBudget(epsilon=3.0))
    return max(total_guarantee(model.fit(X, Y).budget).epsilon for _ in range(11))


def shown(observe: Callable[[], Any]) -> str:
    """What a row observes, or the class of the error."""
    try:
        value = observe()
    except Exception as error:
        value = type(error).__name__
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    asked = beside(__doc__).parse_args()
    after = {case: shown(observe) for case, (_, observe) in ROWS.items()}
    if asked.place:  # this process's winsor alone
        sys.exit(print(json.dumps(after)))
    before = json.loads(elsewhere(__file__, asked.before).splitlines()[-1]) if asked.before else {}
    print("| case | truth | before | after |\n|---|---|---|---|")
    for case, (truth, _) in ROWS.items():
        print(f"| {case} | {truth} | {before.get(case, '')} | {after[case]} |")

"""Issue 37, case by case: what the books say of uses that told them something else.

    python benchmarks/books.py [--before DIR]      this checkout beside another of the code before

A row is a function in `ROWS`. It returns what is observed, or raises: an error is shown by its
class. Add rows with `@row("case", "what is true")`. Results: benchmarks/results/books.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from dp_accounting.dp_event import GaussianDpEvent
from saving import save
from scipy import sparse
from sklearn import calibration, ensemble, feature_selection, model_selection, semi_supervised

import winsor
from winsor.core import compiled
from winsor.core.contract import Bounded, Neighbouring, Sensitivity
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise import kernel
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import key_for
from winsor.core.sampling.samplers import FullBatch
from winsor.core.sampling.units import UnitRows
from winsor.metrics import Accuracy, measure
from winsor.tables import PrivacyBudget, PrivateEncoder, estimator, linear, total_guarantee
from winsor.tables.design import Design
from winsor.tables.means import clipped_mean
from winsor.tuning import PrivateRandomizedSearchCV, tune

Logistic = linear.PrivateLogisticRegression
HERE = Path(__file__).resolve().parents[1]
THERE = Path(winsor.__file__).resolve().parents[1]
ROWS: dict[str, tuple[str, Callable[[], Any]]] = {}
PERSONS, NAN = [i % 64 for i in range(512)], float("nan")
X = np.random.default_rng(0).normal(size=(512, 3))
Y = (X[:, 0] > 0).astype(int)


def row(case: str, truth: str) -> Callable[[Callable[[], Any]], None]:
    """Add a function to the table."""
    return lambda observe: ROWS.update({case: (truth, observe)})


def built(begin: Any = winsor.make_private, **options: Any) -> Any:
    """A training of 512 rows, with steps on all of them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    rows = torch.utils.data.TensorDataset(torch.tensor(X).float(), torch.tensor(Y))
    return begin(
        model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=rows,
        rule=winsor.rules.Flat(1.0), batch_size=64 if "unit" in options else 512, delta=1e-4,
        **{"noise_multiplier": 4.0, "steps": 1, "sampling": "full", **options},
    )  # fmt: skip


def run(**options: Any) -> Any:
    """The same after a step."""
    train(private := built(**options), 1)
    return private


def train(private: Any, steps: int | None = None) -> torch.Tensor:
    for inputs, labels in private.batches(steps):
        losses = torch.nn.functional.cross_entropy(private.model(inputs), labels, reduction="none")
        private.step(losses)
    return torch.nn.utils.parameters_to_vector(private.model.parameters()).detach()


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
    model = Logistic(**first).fit(X, Y, unit=unit)
    return model.set_params(**changed).partial_fit(X, Y).epsilon_


OTHER, WIDER = {"relation": "add_or_remove_one"}, {"bounds": (-9, 9)}
row("set_params(relation=).partial_fit", "2.252")(lambda: continued(OTHER, relation="replace_one"))
row("set_params(bounds=).partial_fit", "refused")(lambda: continued(WIDER, bounds=(-1, 1)))
row("fit(unit=).partial_fit", "no sum")(lambda: continued({}, unit=PERSONS))


def composite(kind: Any, **options: Any) -> None:
    """Add a row: how many fits inside a composite of scikit-learn `total_guarantee` counts."""

    def observe() -> str:
        fits, one = [], Logistic()
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
    model = Logistic(budget=PrivacyBudget(epsilon=3.0))
    return max(total_guarantee(model.fit(X, Y).budget).epsilon for _ in range(11))


# --------------------------------------------------------------------------- public control flow


@row("sparse table of 1999 or 2000 numbers: method", "one")
def _() -> str:
    tables = [(np.arange(100_000) < count).reshape(200, 500) * 0.5 for count in (1999, 2000)]
    kinds = {type(Design(sparse.csr_array(one), True).x).__name__ for one in tables}
    return " or ".join(sorted(kinds))


@row("a class that a random part lacks: shapes of coef_", "one")
def _() -> str:
    shapes = set()
    for seed in range(8):
        y = np.r_[np.zeros(30, int), np.ones(29, int), 2]
        search = PrivateRandomizedSearchCV(
            Logistic(bounds=(-9, 9)), {"alpha": [0.1]}, n_iter=2, delta=1e-3,
            epsilon=20.0, random_state=seed, score_std=0.5,
        )  # fmt: skip
        shapes.add(str(search.fit(X[:60], y).best_estimator_.coef_.shape))
    return ", ".join(sorted(shapes))


@row("PrivateEncoder, one value missing: other rows that move", "0")
def _() -> int:
    whole = np.array([[i % 3, i % 5] for i in range(400)])
    holed = whole.astype(float)
    holed[7, 0] = NAN
    encoder = PrivateEncoder(epsilon=50.0, delta=1e-3, random_state=bytes(32))
    one, other = (np.asarray(encoder.fit(x).transform(x)) for x in (whole, holed))
    return 400 if one.shape != other.shape else int((np.abs(one - other) > 1).any(axis=1).sum())


for kind in ("averaged", "simple", "iterative", "robust_gd"):
    row(f"method={kind!r} without feature_bound", "refused")(
        lambda kind=kind: f"epsilon {Logistic(method=kind).fit(X, Y).epsilon_:.1f}"
    )

# -------------------------------------------------------------------- keys, digests, resumed runs
UNIT = Sensitivity.per_sample(1.0, "a benchmark")


@row("keys of one seed for two long arrays of weights", "2")
def _() -> int:
    one, other = np.full(3000, 0.1), np.where(np.arange(3000) // 500 == 2, 0.2, 0.1)
    return len({key_for(0, None, "a sum", {"weights": each}) for each in (one, other)})


@row("digest: std of the mean of one sum under four names", "refused")
def _() -> str:
    ledger, found, add = Ledger({}), [], Neighbouring("add_or_remove_one")
    for name in "abcd":
        door = Door(ledger, Gaussian(2.0), FullBatch(9), add, bytes(32))
        found.append(door.release(0, {name: Bounded(np.zeros(5000), UNIT)}).values[name])
    return f"{np.mean(found, 0).std():.2f} for 2.0"


@row("one checkpoint resumed on two tables: difference without noise", "refused")
def _() -> float:
    path, ends = str(Path(tempfile.mkdtemp()) / "checkpoint.pt"), []
    run(steps=2, seed=1).save(path)
    for shift in (0.0, 3.0):
        with mock.patch.dict(globals(), X=X + shift * (np.arange(512) == 7)[:, None]):
            ends.append(train(built(partial(winsor.resume, path), steps=2, seed=1)))
    return float((ends[1] - ends[0]).norm())


@row("a second try of a step whose ledger write failed", "refused")
def _() -> str:
    private = run(steps=3, seed=1)
    with suppress(OSError), mock.patch.object(Ledger, "record", side_effect=OSError):
        train(private, 1)
    train(private, 1)
    return "goes on"


# ------------------------------------------------------------------------- checks, words, files


def checked(views: int, **options: Any) -> Callable[[], str]:
    """Return a row about a loss that mixes rows, with so many values for each."""

    def mixing(model: Any, batch: Any) -> torch.Tensor:
        x, y = (part.repeat_interleave(views, 0) for part in batch)
        scores = model(x)
        return torch.nn.functional.cross_entropy(scores - scores.mean(0), y, reduction="none")

    return lambda: built(**options).check(mixing) or "accepted"


row('engine="loop", rows that mix', "refused")(checked(1, engine="loop"))
row("group_size=3, rows that mix", "refused")(checked(3, group_size=3))


@row("a word among exposures, in the error", "not quoted")
def _() -> str:
    try:
        model = linear.PrivatePoissonRegressor(bounds=(-1, 1))
        model.fit(np.ones((2, 1)), [1, 2], exposure=["SECRET", 1.0])
    except ValueError as error:
        return "quoted" if "SECRET" in str(error) else "not quoted"
    return "accepted"


class Canary:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@row("tune in a received directory with a pickle", "no code runs")
def _() -> str:
    sealed = Path(tempfile.mkdtemp()) / "sealed"
    sealed.mkdir(mode=0o700)
    for name, content in (("key", bytes(32)), ("trials", pickle.dumps(Canary(sealed / "mark")))):
        (sealed / name).write_bytes(content)
        (sealed / name).chmod(0o600)
    with suppress(Exception):
        history = [(GaussianDpEvent(4.0), 1)]
        tune(lambda *_: None, {"a": [1]}, trial=history, delta=1e-5, directory=sealed.parent)
    return "code runs" if (sealed / "mark").exists() else "no code runs"


@row("winsor verify after result.json is deleted and model.pt replaced", "found")
def _() -> str:
    from tiny_runs import table
    from tomli_w import dumps

    def command(*words: Any) -> int:
        return subprocess.run(
            [sys.executable, "-m", "winsor", *words], capture_output=True
        ).returncode

    place = Path(tempfile.mkdtemp())
    (place / "a.toml").write_text(dumps(table(training={"steps": 2})))
    folder = place / "run"
    command("train", place / "a.toml", "--run", folder)
    assert command("verify", folder) == 0
    (folder / "result.json").unlink()
    (folder / "model.pt").write_bytes(b"another")
    return "found" if command("verify", folder) else "agrees"


@row("a kernel below a folder that others can write", "not loaded")
def _() -> str:
    home = Path(tempfile.mkdtemp())
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(home / "a" / "b")):
        found = [compiled.load(kernel.SOURCE, kernel.Kernel, kernel.agrees) is not None]
        (home / "a").chmod(0o777)
        found.append(compiled.load(kernel.SOURCE, kernel.Kernel, kernel.agrees) is not None)
    return f"{'loaded' if found[1] else 'not loaded'} (before that: {found[0]})"


PLANTED = [
    ("new_key() of 16 random bits", "core/randomness.py", "return secrets.token_bytes(KEY_BYTES)",
     "return hashlib.blake2b(secrets.token_bytes(2), digest_size=32).digest()",
     "core/test_randomness.py"),
    ("bound_key without dtype", "core/randomness.py", '{thing.dtype}{thing.shape}"',
     '{thing.shape}"', "core/test_randomness.py"),
    ("a blunt look that never ends below zero", "tables/ranges/coarse.py",
     "shares[CELLS + 2 :].sum() < _FEW", "False", "tables/ranges"),
    ("trials without a score are dropped", "tuning/trials.py",
     "rank = -math.inf if math.isnan(value) else value",
     "rank = value\n        if rank != rank:\n            seal._done += 1\n            return",
     "tuning"),
]  # fmt: skip


def planted(file: str, right: str, wrong: str, tests: str) -> str:
    """Whether the tests of this checkout find a mistake."""
    place = Path(tempfile.mkdtemp())
    for name in ("winsor", "tests"):
        shutil.copytree(THERE / name, place / name)
    shutil.copy(THERE / "pyproject.toml", place)
    text = (place / "winsor" / file).read_text()
    assert right in text
    (place / "winsor" / file).write_text(text.replace(right, wrong))
    words = ["-m", "pytest", "-qx", "-p", "no:cacheprovider", f"tests/{tests}"]
    known = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run([sys.executable, *words], cwd=place, env=known, capture_output=True)
    shutil.rmtree(place)
    return ("missed", "found")[done.returncode]


for case, *mistake in PLANTED:
    row(f"planted: {case}", "found")(partial(planted, *mistake))


@row("bf16 with LoRA and dropout: false alarms", "0")
def _() -> str:
    spec = importlib.util.spec_from_file_location("row_checks", HERE / "benchmarks/row_checks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return f"{module.alarms(15)} of 15"


def shown(observe: Callable[[], Any]) -> str:
    """What a row observes, or the class of the error."""
    try:
        value = observe()
    except Exception as error:
        value = type(error).__name__
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def of_checkout(place: Path) -> dict[str, str]:
    """Every row, by the winsor of a checkout."""
    known, command = (
        os.environ | {"PYTHONPATH": f"{place}:{HERE / 'tests/support'}"},
        [sys.executable, "-W", "ignore", str(HERE / "benchmarks/books.py"), "--json"],
    )
    said = subprocess.run(command, check=True, capture_output=True, env=known, cwd="/").stdout
    return dict(json.loads(said.splitlines()[-1]))


if __name__ == "__main__":
    if "--json" in sys.argv:  # this process's winsor alone
        sys.exit(print(json.dumps({case: shown(each[1]) for case, each in ROWS.items()})))
    if "--before" not in sys.argv:
        sys.exit("books.py: name another checkout of winsor: --before DIR")
    other = Path(sys.argv[sys.argv.index("--before") + 1])
    before, after = of_checkout(other), of_checkout(HERE)
    found = {c: {"truth": t, "before": before[c], "after": after[c]} for c, (t, _) in ROWS.items()}
    save("books", {"cases": found})
    print("| case | truth | before | after |\n|---|---|---|---|")
    for case, (truth, _) in ROWS.items():
        print(f"| {case} | {truth} | {before[case]} | {after[case]} |")

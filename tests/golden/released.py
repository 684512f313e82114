"""Released values under known keys and seeds: noise, batches, digests, estimators, trained weights.

`released.json` beside this file holds what they were before the house was rebuilt. Two families
changed since, because the texts that their keys belong to abbreviated values: tunings (the law of
the number of trials was rounded) and the scaler's key of a RandomState (an address in memory).
There are two kinds, told apart by how they are written:

    a text       BLAKE2b of integers, bytes or noise on its grid: exact on every processor
    numbers      fitted attributes and weights, which pass through BLAS or LAPACK: the test compares
                 them within 1e-6, `tests/golden/same_bits.py` in every digit, on one machine

Keys of estimators are seen as what ledgers show of them (their fingerprints, which are texts).
Tables hold multiples of 1/64: their bytes, to which keys are bound, are the same everywhere.

    python tests/golden/released.py --write     store today's values
    python tests/golden/released.py --print     one JSON object on standard output
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import winsor
from winsor import features, metrics, rules
from winsor.core.accounting import event_to_json
from winsor.core.contract import Bounded, Neighbouring, Sensitivity, WinsorError
from winsor.core.door import Digest, Door
from winsor.core.ledger import Ledger, config_hash
from winsor.core.noise.gaussian import Gaussian
from winsor.core.noise.laplace import Laplace
from winsor.core.noise.source import NoiseSource
from winsor.core.noise.source import method as method_of_noise
from winsor.core.prepaid import PrepaidDoor
from winsor.core.randomness import bound_key, fingerprint, key_for, new_key, stream, subkey
from winsor.core.sampling.allocation import Allocation, Loader
from winsor.core.sampling.cyclic import CyclicPoisson
from winsor.core.sampling.samplers import FixedSize, FullBatch, Poisson
from winsor.core.sampling.units import UnitRows
from winsor.rules.quantile import UnitLength
from winsor.tables import additive, linear, means, partitions, ranges
from winsor.tables.linear.batches import BlockPoisson
from winsor.tables.units import one_row_each
from winsor.tails import PrivateMonitor
from winsor.training import losses
from winsor.tuning.trial_counts import PoissonTrials, TruncatedNegativeBinomial
from winsor.tuning.trial_counts import draw as draw_trials

STORED = Path(__file__).with_name("released.json")
Row = tuple[str, Any]
ADD = Neighbouring.ADD_OR_REMOVE_ONE
KEY, OTHER = bytes(range(32)), bytes(range(100, 132))


def digest(*things: Any) -> str:
    """A text for arrays and plain values: dtype, shape and bytes, in little-endian order."""
    found = hashlib.blake2b(digest_size=16)
    for thing in things:
        if isinstance(thing, torch.Tensor):
            thing = thing.detach().cpu().numpy()
        if isinstance(thing, np.ndarray):
            found.update(f"{thing.dtype.str}{thing.shape}".encode())
            found.update(
                np.ascontiguousarray(thing).astype(thing.dtype.newbyteorder("<")).tobytes()
            )
        else:
            found.update(repr(thing).encode())
        found.update(b"|")
    return found.hexdigest()


# ------------------------------------------------------------------------------- exact everywhere


def things() -> dict[str, tuple[Any, ...]]:
    """What keys are bound to: arrays of several kinds, texts, numbers."""
    table = np.arange(12, dtype=np.float64).reshape(3, 4) / 64
    return {
        "nothing": (),
        "a text": ("clipped mean",),
        "two texts": ("clipped", "mean"),
        "numbers": (1, 0.1, None, True, (1.5, 2), {"a": 1}),
        "a table": (table,),
        "a table in columns": (np.asfortranarray(table),),
        "part of a table": (table[:, ::2],),
        "other numbers": (table.astype(np.float32), np.arange(5), np.array([True, False])),
        "texts in an array": (np.array(["a", "bcd"]),),
        "all": ("describe", table, 0.05, table[0], "end"),
        "an empty array": (np.empty((0, 3)),),
    }


def keys() -> Iterator[Row]:
    """Keys from seeds, what they are bound to, and the streams that begin with them."""
    seeds = [*range(20), 42, -1, 2**31 - 1, 2**31, 2**32 + 5, 2**63, 10**30]
    yield "new_key", digest(*(new_key(seed) for seed in seeds))
    yield "new_key of 0", new_key(0).hex()
    yield "fingerprints", [fingerprint(key) for key in (KEY, OTHER, new_key(7))]
    for name, bound in things().items():
        for seed in (0, 1, 12345):
            yield f"bound_key {seed}: {name}", bound_key(new_key(seed), *bound).hex()
            yield f"as_key {seed}: {name}", key_for(seed, None, *bound).hex()
            yield f"as_key numpy {seed}: {name}", key_for(np.int64(seed), None, *bound).hex()
            for spent in (0, 3):
                yield (
                    f"fresh_key {seed} after {spent}: {name}",
                    key_for(seed, spent, *bound).hex(),
                )
        yield f"fresh_key of bytes: {name}", key_for(KEY, 2, *bound).hex()
        yield f"as_key of bytes: {name}", key_for(KEY, None, *bound).hex()
        state = np.random.RandomState(5)
        pair = [key_for(state, 0, *bound).hex() for _ in range(2)]
        yield f"fresh_key of a RandomState: {name}", pair
    yield "as_key, many seeds", digest(*(key_for(seed, None, "x") for seed in range(300)))
    yield "fresh_key, many seeds", digest(*(key_for(seed, 1, "x") for seed in range(300)))
    purposes = (
        "batch", "digest", "iterate", "groups", "mix", "check", "rows that ranks compare",
        "holdout", "setting", "seed", "tie", "rule", "cyclic batch", "cyclic groups",
        "rows of unit 3", "augmentation", "allocation", "loader", "poisson block",
        "one row of each unit", "number of trials", "canary coins", "dc-dpsgd", "",
    )  # fmt: skip
    for purpose in purposes:
        yield f"subkey {purpose!r}", [subkey(key, purpose) for key in (KEY, OTHER)]
        drawn = [stream(KEY, purpose, step).integers(0, 2**63, 8) for step in (0, 1, 10**6)]
        yield f"stream {purpose!r}", digest(*drawn)
    yield "config_hash", config_hash({"b": [1, None, 0.1], "a": {"é": "x"}})


def seeds_of_estimators() -> Iterator[Row]:
    """The key that an estimator makes of a seed, its data and its settings, as ledgers name it."""
    table = exact(40, 3)
    texts = np.array([["a", "x"], ["b", "y"]] * 20, dtype=object)
    labels = np.arange(40) % 3
    pixels = torch.tensor(exact(40, 12).reshape(40, 3, 2, 2), dtype=torch.float32)
    loose: dict[str, Any] = {"delta": 1e-3, "allow_large_delta": True}

    def scaled(seed: Any, rows: Any) -> Any:
        return linear.PrivateScaler(random_state=seed, **loose).fit(rows).ledger_

    def binned(seed: Any, rows: Any) -> Any:
        return (
            ranges.PrivateBinner(bins=4, epsilon=1.0, random_state=seed, **loose).fit(rows).ledger_
        )

    def encoded(seed: Any, rows: Any) -> Any:
        return ranges.PrivateEncoder(epsilon=1.0, random_state=seed, **loose).fit(rows).ledger_

    def counted(seed: Any, rows: Any) -> Any:
        terms: dict[str, Any] = {"noise_multiplier": 2.0, "seed": seed, **loose}
        return losses.released_counts(rows, 3, **terms).ledger

    def normed(seed: Any, rows: Any) -> Any:
        return features.PrivateNorm(noise_multiplier=20.0, seed=seed, **loose).fit(rows).ledger_

    makers: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
        "scaler": (scaled, table), "binner": (binned, table), "encoder": (encoded, texts),
        "counts": (counted, labels), "norm": (normed, pixels),
    }  # fmt: skip
    for name, (ledger_of, rows) in makers.items():
        for part, some in (("all rows", rows), ("fewer rows", rows[:-1])):
            runs = [list(ledger_of(seed, some).runs) for seed in range(6)]
            yield f"key of {name}, {part}", runs
        if name in ("scaler", "binner", "encoder"):
            state = np.random.RandomState(3)
            runs = [list(ledger_of(state, rows).runs) for _ in range(2)]
            yield f"key of {name}, a RandomState", runs
        if name in ("scaler", "binner", "encoder"):
            yield f"key of {name}, numpy", list(ledger_of(np.int64(3), rows).runs)
        if name == "scaler":
            yield f"key of {name}, bytes", list(ledger_of(KEY, rows).runs)
        if name == "binner":
            few = ranges.private_bins(rows, epsilon=1.0, random_state=KEY, **loose).ledger
            yield f"key of {name}, bytes", list(few.runs)


def noise() -> Iterator[Row]:
    """Noise by (key, stream, size, law, bits, entry), drawn in every way there is."""
    yield "method", method_of_noise()
    for compiled in (True, False):
        for ahead in (False, True) if compiled else (False,):
            for key in (KEY, OTHER):
                source = NoiseSource(key, prefetch=ahead, use_kernel=compiled)
                for law in ("gaussian", "laplace"):
                    for name, size, entries in (
                        ("grad", 1, (0, 1, 63, 64, 65)), ("grad", 1000, (0, 1, 7)),
                        ("prepaid", 37, (0, 5)), ("votes", 37, (0, 2**40)),
                    ):  # fmt: skip
                        drawn = [source.normal(entry, name, size, law) for entry in entries]
                        how = "compiled" if compiled else "numpy"
                        label = f"{how} ahead {ahead} {fingerprint(key)[:4]} {law} {name} {size}"
                        yield f"normal {label}", digest(*drawn)
                    for bits in (None, 28, 40):
                        for dtype in (torch.float32, torch.float64):
                            flat = (torch.arange(50, dtype=dtype) - 25) / 8
                            source.add(3, "grad", flat, 0.75, law=law, bits=bits)
                            kind = f"{law} bits {bits} {dtype} {fingerprint(key)[:4]} {ahead}"
                            yield f"add {'compiled' if compiled else 'numpy'} {kind}", digest(flat)
                leaves = [torch.zeros(3, 2, dtype=torch.float64), torch.ones(5)]
                source.add_leaves(9, "leaves", leaves, 2.0, bits=30)
                yield f"leaves {compiled} {ahead} {fingerprint(key)[:4]}", digest(*leaves)
                piece = torch.zeros(4, dtype=torch.float64)
                source.add_slice(9, "leaves", [piece], 2.0, 6, 11, bits=30)
                yield f"slice {compiled} {ahead} {fingerprint(key)[:4]}", digest(piece)
                source.close()


def batches() -> Iterator[Row]:
    """The rows of steps under known keys, by every sampler."""
    samplers: dict[str, Any] = {
        "poisson": Poisson(500, 0.05),
        "poisson of batch size": Poisson.of_batch_size(997, 64),
        "poisson, rows not public": Poisson(500, 0.05, 20.0),
        "fixed size": FixedSize(500, 25),
        "full": FullBatch(30),
        "allocation": Allocation(500, 9),
        "allocation of batch size": Allocation.of_batch_size(1000, 64),
        "loader": Loader(100, 16),
        "loader, in order": Loader(100, 16, shuffle=False),
        "loader, last dropped": Loader(100, 16, drop_last=True),
        "cyclic": CyclicPoisson(600, 4, 0.02),
        "cyclic, one group": CyclicPoisson(600, 1, 0.02),
        "blocks of poisson": BlockPoisson.of_batch_size(500, 20),
    }
    for name, sampler in samplers.items():
        for key in (KEY, OTHER):
            drawn = [np.asarray(sampler.indices(key, step)) for step in (*range(12), 40, 1000)]
            yield (
                f"{name} {fingerprint(key)[:4]}",
                digest(*(rows.astype(np.int64) for rows in drawn)),
            )
    inside = samplers["blocks of poisson"].batches(KEY, 3, 20)
    yield "blocks of poisson, in turn", digest(*(rows.astype(np.int64) for rows in inside))
    ids = [f"person {i % 17}" for i in range(100)]
    units = UnitRows(ids, 4)
    yield "units: fingerprint", units.fingerprint(KEY)
    chosen = [units.chosen(unit, KEY, step) for unit in range(17) for step in (0, 5)]
    yield "rows of units", digest(*(rows.astype(np.int64) for rows in chosen))
    yield "one row of each unit", digest(np.asarray(one_row_each(100, ids, KEY)).astype(np.int64))
    laws = {
        "logarithmic": TruncatedNegativeBinomial.of_mean(10),
        "geometric": TruncatedNegativeBinomial.of_mean(5, 1.0),
        "poisson": PoissonTrials(10.0),
    }
    for name, law in laws.items():
        yield f"trials {name}", [draw_trials(law, new_key(seed)) for seed in range(30)]


def digests() -> Iterator[Row]:
    """Tags of values under a key: the compiled ones and those of `cryptography`."""
    mac = Digest(KEY[:16])
    values = torch.arange(40) / 8 - 2
    for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for nonce in (bytes(12), bytes(range(12))):
            leaf = values.to(kind)
            tags = [
                mac.tag(nonce, one) for one in (leaf, leaf[:1], leaf[::3], leaf.reshape(8, 5).T)
            ]
            yield f"tags {kind} {nonce.hex()}", [None if t is None else t.hex() for t in tags]
    yield (
        "not finite",
        [mac.tag(bytes(12), torch.tensor([1.0, bad])) for bad in (math.inf, math.nan)],
    )


def doors() -> Iterator[Row]:
    """Releases through both doors: values on the grid, entries, ledgers."""
    sensitivity = Sensitivity(1.0, 2.0, "a test", l1=1.0)
    for name, mechanism in (("gaussian", Gaussian(1.5)), ("laplace", Laplace(1.5))):
        for sampler in (Poisson(100, 0.25), FullBatch(100), Allocation(100, 4)):
            if name == "laplace" and isinstance(sampler, Allocation):
                continue
            ledger = Ledger({"a": "test"})
            door = Door(ledger, mechanism, sampler, ADD, KEY)
            for step in range(3):
                grads = {"w": torch.arange(6.0).reshape(2, 3) / 8, "b": torch.zeros(2)}
                votes = Bounded(torch.ones(1, dtype=torch.float64) * step, sensitivity, 0.25)
                parts = {"grad": Bounded(grads, sensitivity, 0.75), "votes": votes}
                if step == 2:
                    parts = {"grad": Bounded(grads, sensitivity, 1.0, 0.5)}
                    if isinstance(sampler, Allocation):
                        break
                released = door.release(step, parts)
                flat = [*released.values["grad"].values()]
                flat += [released.values["votes"]] if step < 2 else []
                label = f"door {name} {type(sampler).__name__} step {step}"
                yield label, [digest(*flat), released.entry]
                yield f"{label}: std", [*released.std.values()]
            yield f"door {name} {type(sampler).__name__}: run", door.run
            record = ledger.state_dict()["runs"][door.run]
            yield f"door {name} {type(sampler).__name__}: digests", record["digests"]
    for seed in (0, 1, 2):
        ledger = Ledger({"method": "a test"})
        door = PrepaidDoor(ledger, ADD, new_key(seed))
        one = door.pay(Gaussian(2.0), FullBatch(50), sensitivity, 3, (2, 3))
        two = door.pay(Gaussian(4.0), Poisson(50, 0.5), sensitivity, 2, 4)
        values = [one.release(np.arange(6.0).reshape(2, 3) + step) for step in range(3)]
        values += [two.release(np.arange(4.0) * 2), two.release(np.arange(8.0)[::2] * 1.0)]
        yield f"prepaid {seed}", [digest(*values), door.run, ledger.runs[door.run]]
        yield f"prepaid {seed}: ledger", ledger.digest()


# --------------------------------------------------------------------------- nearly equal anywhere


def exact(n: int, d: int, seed: int = 0) -> np.ndarray:
    """A table of multiples of 1/64 with a few long rows: the same bytes on every processor."""
    drawn = np.random.default_rng(seed).integers(-64, 65, (n, d)) / 64
    drawn[::25] *= 8
    return drawn


def plain(value: Any) -> Any:
    """Numbers, texts, lists of them: of arrays, dataclasses, guarantees and ledgers."""
    if isinstance(value, Ledger):
        events = [[event_to_json(event), count] for event, count in value.history()]
        return {"config": plain(value.config), "runs": dict(value.runs), "events": events}
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value.tolist()] if value.ndim else plain(value.item())
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__name__ == "Guarantee":
        return [value.epsilon, value.delta, str(value.relation)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in fields if name[0] != "_"}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def fitted(model: Any) -> dict[str, Any]:
    """All that a fit left in an estimator's public attributes."""
    names = [name for name in vars(model) if name.endswith("_") and name[0] != "_"]
    return {name: plain(getattr(model, name)) for name in sorted(names)}


def answered(question: Callable[[], Any]) -> Any:
    try:
        return plain(question())
    except WinsorError as refusal:
        return f"refused: {type(refusal).__name__}"


N = 200
TABLE = exact(N, 3)
BUDGET: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-3}
BOUNDS = (-2.0, 2.0)


def targets() -> dict[str, np.ndarray]:
    whole = np.rint(np.abs(TABLE[:, 0]) * 2)
    score = TABLE @ np.array([1.0, -0.5, 0.25])
    return {
        "amount": np.clip(score, -2, 2),
        "two": (score > 0).astype(int),
        "three": np.digitize(score, [-0.3, 0.3]),
        "count": whole,
        "positive": 0.5 + np.abs(TABLE[:, 1]),
    }


def linear_models() -> Iterator[Row]:
    y = targets()
    more: dict[str, Any] = BUDGET | {"random_state": 3}
    bounded = more | {"bounds": BOUNDS}
    ranged = {"target_range": (-2.0, 2.0)}
    short = {"steps": 12, "radius": 2.0}
    models: dict[str, tuple[Any, str]] = {
        "logistic": (linear.PrivateLogisticRegression(**bounded), "two"),
        "logistic, three classes": (linear.PrivateLogisticRegression(**bounded), "three"),
        "logistic, ranges learnt": (linear.PrivateLogisticRegression(**more), "two"),
        "logistic, replace one": (
            linear.PrivateLogisticRegression(relation="replace_one", **bounded), "two",
        ),
        "logistic, noise given": (
            linear.PrivateLogisticRegression(noise_multiplier=5.0, method="flat", **more), "two",
        ),
        "logistic, no intercept": (
            linear.PrivateLogisticRegression(
                fit_intercept=False, alpha=0.1, feature_bound=2.0, method="flat", **more
            ), "two",
        ),
        "linear": (linear.PrivateLinearRegression(**bounded, **ranged), "amount"),
        "linear, bytes": (
            linear.PrivateLinearRegression(**bounded | {"random_state": KEY}, **ranged), "amount",
        ),
        "ridge": (linear.PrivateRidge(alpha=0.01, **bounded, **ranged), "amount"),
        "ridge, range learnt": (linear.PrivateRidge(**bounded), "amount"),
        "huber": (linear.PrivateHuberRegressor(**bounded, **ranged), "amount"),
        "huber, threshold": (linear.PrivateHuberRegressor(threshold=0.5, **bounded), "amount"),
        "svc": (linear.PrivateLinearSVC(**more), "two"),
        "median": (linear.PrivateMedianRegressor(**more), "amount"),
        "poisson": (linear.PrivatePoissonRegressor(**bounded), "count"),
        "gamma": (linear.PrivateGammaRegressor(**bounded), "positive"),
    }  # fmt: skip
    methods: dict[str, Any] = {
        "flat": linear.FlatDescent(steps=12),
        "flat, batches": linear.FlatDescent(batch_size=50, steps=12, record=6),
        "averaged": linear.AveragedDescent(clip=1.0, batch_size=50, steps=12),
        "averaged, full": linear.AveragedDescent(clip=1.0, steps=12, learning_rate=0.1),
        "simple": linear.Simple(clip=1.0, **short),
        "iterative": linear.Iterative(clip=1.0, groups=8, updates=3, **short),
        "iterative, shuffled": linear.Iterative(
            clip=1.0, groups=8, grouping="partition", updates=3, **short
        ),
        "restarted": linear.Restarted(runs=2, clip=1.0, batch_size=50, learning_rate=0.1, steps=12),
        "robust": linear.RobustGD(scale=1.0, steps=12, radius=2.0),
        "whitened": linear.Whitened(steps=8),
        "automatic": linear.Ruled("automatic", steps=12, batch_size=50),
        "quantile": linear.Ruled("quantile", {"max_grad_norm": 1.0}, steps=12, batch_size=50),
    }
    theorems = ("averaged", "simple", "iterative", "robust")
    for name, method in methods.items():
        bound = 3.0 if name.startswith(theorems) else None
        models[f"logistic by {name}"] = (
            linear.PrivateLogisticRegression(method=method, feature_bound=bound, **more), "two",
        )  # fmt: skip
    for name in ("floor", "adassp"):
        models[f"linear by statistics, {name}"] = (
            linear.PrivateLinearRegression(
                method=linear.SufficientStatistics(regulariser=name), **bounded, **ranged
            ), "amount",
        )  # fmt: skip
    for name, (model, target) in models.items():
        yield name, answered(lambda m=model, t=target: fitted(m.fit(TABLE, y[t])))
    twice = linear.PrivateLogisticRegression(method="flat", **more)
    yield (
        "logistic, two partial fits",
        answered(
            lambda: fitted(
                twice.partial_fit(TABLE, y["two"], classes=[0, 1]).partial_fit(
                    TABLE[::-1], y["two"][::-1]
                )
            )
        ),
    )
    scaler = linear.PrivateScaler(random_state=3, low=-2.0, high=2.0, **BUDGET)
    yield "scaler", fitted(scaler.fit(TABLE))
    unbounded = linear.PrivateScaler(random_state=3, low=None, high=None, **BUDGET)
    yield "scaler, ranges learnt", answered(lambda: fitted(unbounded.fit(TABLE)))
    both = linear.total_guarantee(scaler, models["ridge"][0])
    yield "total", plain(both)


def additive_models() -> Iterator[Row]:
    y = targets()
    more: dict[str, Any] = BUDGET | {"random_state": 4, "bounds": BOUNDS}
    regressor, classifier = additive.PrivateAdditiveRegressor, additive.PrivateAdditiveClassifier
    models: dict[str, tuple[Any, str]] = {
        "squared": (regressor(target_bounds=(-2.0, 2.0), **more), "amount"),
        "squared, range learnt": (regressor(interactions=0, **more), "amount"),
        "huber": (regressor(loss="huber", target_bounds=(-2.0, 2.0), **more), "amount"),
        "poisson": (regressor(loss="poisson", interactions=1, **more), "count"),
        "gamma": (regressor(loss="gamma", interactions=0, **more), "positive"),
        "classifier": (classifier(**more), "two"),
        "three classes": (classifier(interactions=0, **more), "three"),
        "ranges learnt": (classifier(interactions=0, random_state=4, **BUDGET), "two"),
    }
    for name, (model, target) in models.items():

        def found(model: Any = model, target: str = target) -> dict[str, Any]:
            model.fit(TABLE, y[target])
            scores = model.predict(TABLE[:5])
            return fitted(model) | {"predicted": plain(scores)}

        yield name, answered(found)


def mean_values() -> Iterator[Row]:
    more: dict[str, Any] = BUDGET | {"random_state": 5}
    by = np.arange(N) % 4
    column = TABLE[:, 0]
    learnt = means.PrivateRadius(0.01, 100.0)
    asked: dict[str, Callable[[], Any]] = {
        "clipped": lambda: means.clipped_mean(TABLE, radius=2.0, **more),
        "clipped, column": lambda: means.clipped_mean(column, radius=1.0, centre=0.5, **more),
        "clipped, moments": lambda: means.clipped_mean(TABLE, moments=(2.0, 1.0), **more),
        "clipped, radius learnt": lambda: means.clipped_mean(TABLE, radius=learnt, **more),
        "clipped, rho": lambda: means.clipped_mean(
            TABLE, radius=2.0, rho=0.1, delta=1e-3, random_state=5
        ),
        "clipped, replace": lambda: means.clipped_mean(
            TABLE, radius=2.0, relation="replace_one", **more
        ),
        "clipped, units": lambda: means.clipped_mean(TABLE, radius=2.0, unit=by, **more),
        "averaged": lambda: means.averaged_mean(TABLE, clip=2.0, **more),
        "averaged, batches": lambda: means.averaged_mean(TABLE, clip=2.0, batch_size=50, **more),
        "iterative": lambda: means.iterative_mean(TABLE, radius=2.0, groups=8, **more),
        "iterative, partition": lambda: means.iterative_mean(
            TABLE, radius=2.0, groups=8, grouping="partition", updates=4, **more
        ),
        "iterative, geometric median": lambda: means.iterative_mean(
            TABLE, radius=2.0, groups=8, combine="geometric_median", **more
        ),
        "winsorised": lambda: means.winsorised_mean(column, **more),
        "winsorised, columns": lambda: means.winsorised_mean(TABLE, **more),
        "winsorised, groups": lambda: means.winsorised_mean(column, by=by, **more),
        "described": lambda: means.describe(column, **more),
        "described, groups": lambda: means.describe(column, by=by, **more),
    }
    for name, question in asked.items():
        yield name, answered(question)
    for seed in range(4):
        found = means.clipped_mean(TABLE, radius=2.0, epsilon=1.0, delta=1e-3, random_state=seed)
        yield f"clipped, seed {seed}", plain(found)


def range_values() -> Iterator[Row]:
    more: dict[str, Any] = BUDGET | {"random_state": 6}
    texts = np.array([["a", "x"], ["b", "y"], ["a", "z"], ["a", "x"]] * 50, dtype=object)
    asked: dict[str, Callable[[], Any]] = {
        "bins": lambda: ranges.private_bins(TABLE, bins=6, **more),
        "bins, bounds": lambda: ranges.private_bins(TABLE, bins=6, bounds=BOUNDS, **more),
        "categories": lambda: ranges.private_categories(texts, **more),
        "binner": lambda: fitted(ranges.PrivateBinner(bins=5, **more).fit(TABLE)),
        "binner, replace": lambda: fitted(
            ranges.PrivateBinner(bins=5, relation="replace_one", **more).fit(TABLE)
        ),
        "encoder": lambda: fitted(ranges.PrivateEncoder(**more).fit(texts)),
        "encoder, some known": lambda: fitted(
            ranges.PrivateEncoder(categories=[["a", "b"], None], **more).fit(texts)
        ),
    }
    for name, question in asked.items():
        yield name, answered(question)


def metric_values() -> Iterator[Row]:
    truth = np.arange(N) % 2
    guess = (np.arange(N) % 3 == 0).astype(int)
    score = (np.arange(N) % 64) / 64
    columns: dict[str, Any] = {
        "targets": truth, "predictions": guess, "scores": score, "groups": np.arange(N) % 3,
        "losses": score * 2,
    }  # fmt: skip
    many = {
        "accuracy": metrics.Accuracy(),
        "auc": metrics.AUC(bins=8),
        "r2": metrics.R2(0.0, 1.0),
        "calibration": metrics.Calibration(bins=4),
        "loss": metrics.ClippedLoss(1.0),
        "confusion": metrics.ConfusionMatrix([0, 1]),
        "deviance": metrics.DevianceExplained([0, 1]),
        "quantiles": metrics.Quantiles([0.25, 0.5], 0.0, 1.0, bins=8),
        "groups": metrics.ByGroup(metrics.Accuracy(), [0, 1, 2]),
    }
    for name, metric in many.items():
        rounded = name in ("deviance", "r2")  # logarithms, to which a seed's key would be bound
        seed = KEY if rounded else 7
        terms: dict[str, Any] = {"noise_multiplier": 2.0, "delta": 1e-3, "random_state": seed}
        yield name, answered(lambda m=metric, t=terms: metrics.measure(m, **columns, **t))
    together = {"accuracy": many["accuracy"], "auc": many["auc"]}
    terms = {"noise_multiplier": 1.5, "delta": 1e-3, "random_state": KEY}
    yield "together", answered(lambda: metrics.measure(together, **columns, **terms))


def partition_values() -> Iterator[Row]:
    y = targets()
    more: dict[str, Any] = BUDGET | {"random_state": 8}

    def parts(table: np.ndarray) -> Any:
        loaders = [lambda piece=piece: piece for piece in np.array_split(table, 3)]
        return partitions.Partitions.of_loaders(loaders, columns=table.shape[1])

    rows = parts(TABLE)
    beside = parts(np.column_stack([TABLE, y["amount"]]))
    labelled = parts(np.column_stack([TABLE, y["two"].astype(float)]))

    def judged(piece: np.ndarray) -> dict[str, Any]:
        return {"targets": piece[:, 3], "predictions": np.zeros(len(piece))}

    asked: dict[str, Callable[[], Any]] = {
        "clipped mean": lambda: partitions.clipped_mean(rows, radius=2.0, **more),
        "quantiles": lambda: partitions.quantiles(rows, [0.1, 0.5], bins=8, **more),
        "second moments": lambda: partitions.second_moments(rows, bound=2.0, **more),
        "scaler": lambda: fitted(
            partitions.fit_scaler(linear.PrivateScaler(low=-2.0, high=2.0, **more), rows)
        ),
        "ridge": lambda: fitted(
            partitions.fit_ridge(
                linear.PrivateRidge(
                    method="suffstats", bounds=BOUNDS, target_range=(-2.0, 2.0), **more
                ),
                beside,
            )
        ),
        "additive": lambda: fitted(
            partitions.fit_additive(
                additive.PrivateAdditiveRegressor(
                    bounds=BOUNDS, target_bounds=(-2.0, 2.0), interactions=1, **more
                ),
                beside,
            )
        ),
        "additive classifier": lambda: fitted(
            partitions.fit_additive(
                additive.PrivateAdditiveClassifier(bounds=BOUNDS, interactions=0, **more),
                labelled,
                classes=[0.0, 1.0],
            )
        ),
        "metrics": lambda: partitions.measure(
            metrics.Accuracy(), labelled, judged, noise_multiplier=2.0, delta=1e-3, random_state=8
        ),
    }
    for name, question in asked.items():
        yield name, answered(question)


def feature_values() -> Iterator[Row]:
    pixels = torch.tensor(exact(N, 48).reshape(N, 3, 4, 4), dtype=torch.float32)
    more: dict[str, Any] = {"noise_multiplier": 20.0, "delta": 1e-3, "seed": 9}
    makers: dict[str, Callable[[], Any]] = {
        "norm": lambda: features.PrivateNorm(**more),
        "norm, replace": lambda: features.PrivateNorm(relation="replace_one", **more),
        "whitening": lambda: features.PrivateWhitening(rounds=2, bound=4.0, **more),
        "axes": lambda: features.PrivateAxes(bound=4.0, **more),
        "axes, places": lambda: features.PrivateAxes(place_power=0.5, bound=4.0, **more),
    }
    for name, make in makers.items():

        def found(name: str = name, make: Callable[[], Any] = make) -> dict[str, Any]:
            rows = pixels.flatten(1)[:, :6] if name == "whitening" else pixels
            transform = make().fit(rows)
            after = transform(rows[:2])
            return fitted(transform) | {"after": plain(after.reshape(-1)[::7])}

        yield name, answered(found)
    labels = np.arange(N) % 4 % 3
    for seed in (0, 1):
        terms: dict[str, Any] = {"noise_multiplier": 2.0, "delta": 1e-3, "seed": seed}
        yield (
            f"class counts {seed}",
            answered(lambda t=terms: losses.released_counts(labels, 3, **t)),
        )
    counts = losses.released_counts(labels, 3, noise_multiplier=2.0, delta=1e-3, seed=0).counts
    adjusted = losses.LogitAdjusted(counts)
    yield "adjusted loss", plain(adjusted(torch.eye(3), torch.tensor([0, 1, 2])))


def tunings() -> Iterator[Row]:
    """Settings, scores and noise of trials under a known key."""
    space = {"lr": winsor.tuning.LogUniform(0.01, 1.0), "kind": ["a", "b"]}
    seen: list[Any] = []

    def train(setting: Mapping[str, Any], job: Any) -> Any:
        ledger = Ledger({"n": N})
        door = PrepaidDoor(ledger, ADD, job.key)
        receipt = door.pay(
            Gaussian(job.noise_multiplier), FullBatch(N), Sensitivity(1.0, 2.0, "a count"), 1, 1
        )
        value = float(receipt.release(np.array([10.0]))[0])
        seen.append([dict(setting), job.seed, fingerprint(job.key), value])
        return value, ledger, value

    def trial(nm: float) -> Any:
        return [(Gaussian(nm).event({"v": Bounded(None, Sensitivity(1, 2, "x"))}).whole(ADD), 1)]

    law = TruncatedNegativeBinomial(0.0, 0.0625)  # keys are bound to it: no rounding of its own
    for seed in (0, 1):
        seen.clear()
        found = winsor.tuning.tune(
            train, space, trial=trial, epsilon=2.0, delta=1e-4, trials=law, random_state=seed
        )
        yield f"trials {seed}", plain(seen)
        best = [found.best_setting, found.best_score, found.guarantee.epsilon]
        yield f"best {seed}", plain(best)


def problem() -> tuple[torch.nn.Module, TensorDataset]:
    """A net of two layers with weights that are multiples of 1/64, and 96 rows."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            values = exact(parameter.numel(), 1, place + 1).reshape(parameter.shape) % 1 - 0.5
            parameter.copy_(torch.from_numpy(values))
    x = torch.tensor(exact(96, 4, 9), dtype=torch.float32)
    return model, TensorDataset(x, (x[:, 0] > x[:, 1]).long())


def trained(rule: Any, steps: int = 4, **options: Any) -> Any:
    """A run after so many steps, under a key from a seed."""
    model, data = problem()
    momentum = options.pop("momentum", 0.0)
    views = options.get("group_size", 1)
    options = {"noise_multiplier": 0.5, "batch_size": 16, "steps": 8, "seed": 11} | options
    private = winsor.make_private(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.25, momentum=momentum),
        dataset=data,
        rule=rule,
        delta=1e-3,
        **options,
    )
    if steps:
        for inputs, labels in private.batches(steps):
            if views > 1:
                inputs = torch.stack([inputs * (1 + k / 8) for k in range(views)], 1).flatten(0, 1)
                labels = labels.repeat_interleave(views)
            private.step(F.cross_entropy(private.model(inputs), labels, reduction="none"))
    return private


def state(private: Any) -> dict[str, Any]:
    weights = {name: plain(value.reshape(-1)) for name, value in private.model.named_parameters()}
    ledger = plain(private.ledger)
    chosen = private.load_released_iterate()
    flat = torch.cat([value.detach().reshape(-1) for value in chosen.parameters()])
    same = plain(flat) == [one for values in weights.values() for one in values]
    return {"weights": weights, "ledger": ledger} | ({} if same else {"released": plain(flat)})


def weights() -> Iterator[Row]:
    """Four steps of every rule, and of every other choice that changes a step."""
    flat, unit = rules.Flat(1.0), [i % 24 for i in range(96)]
    settings: dict[str, dict[str, Any]] = {f"{rule!r}": {"rule": rule} for rule in every_rule()}
    settings |= {
        "monitored": {"rule": PrivateMonitor(flat)},
        "unit length": {"rule": UnitLength(rules.Quantile(1.0))},
        "laplace": {"rule": rules.L1(1.0), "mechanism": "laplace"},
        "laplace, bounded coordinates": {"rule": rules.L1(1.0, p=4), "mechanism": "laplace"},
        "banded": {"rule": flat, "mechanism": winsor.Banded(bands=3)},
        "banded, one band": {"rule": flat, "mechanism": winsor.Banded(bands=1)},
        "modelmix": {"rule": flat, "mechanism": winsor.ModelMix(tau_over_lr=0.15)},
        "modelmix, bounded coordinates": {
            "rule": rules.LInf(1.0, p=4), "mechanism": winsor.ModelMix(tau_over_lr=0.15),
        },
        "modelmix, laplace": {
            "rule": rules.L1(1.0, p=2),
            "mechanism": winsor.ModelMix(tau_over_lr=0.15, noise="laplace"),
        },
        "full": {"rule": flat, "sampling": "full", "batch_size": 96},
        "fixed": {"rule": flat, "sampling": "fixed", "relation": "replace_one"},
        "replace one": {"rule": flat, "relation": "replace_one"},
        "allocation": {"rule": flat, "sampling": "allocation"},
        "loader": {"rule": flat, "sampling": "loader"},
        "rows not public": {"rule": flat, "sampling_rate": 0.125},
        "small pieces": {"rule": flat, "max_physical_batch_size": 5},
        "units": {"rule": flat, "unit": unit, "rows_per_unit": 3, "batch_size": 8},
        "units, sums": {"rule": flat, "unit": unit, "within_unit": "sum", "batch_size": 8},
        "views": {"rule": flat, "group_size": 2},
        "momentum": {"rule": flat, "momentum": 0.9},
        "ball": {"rule": flat, "ball": winsor.Ball(1.0)},
        "epsilon": {"rule": flat, "noise_multiplier": None, "epsilon": 4.0},
    }  # fmt: skip
    for engine in ("ghost", "func", "loop"):
        settings[f"engine {engine}"] = {"rule": flat, "engine": engine}
        settings[f"engine {engine}, per layer"] = {"rule": rules.PerLayer(1.0), "engine": engine}
    for kind in ("averaged", "random", "averaged_midpoints", "tail", "ema"):
        settings[f"iterate {kind}"] = {"rule": flat, "iterate": kind}
    for name, options in settings.items():
        yield name, answered(lambda o=options: state(trained(**o)))


def every_rule() -> tuple[Any, ...]:
    examples: tuple[Any, ...] = rules.all_examples()
    return examples


EXACT: tuple[Callable[[], Iterator[Row]], ...] = (
    keys, seeds_of_estimators, noise, batches, digests, doors,
)  # fmt: skip
NEAR: tuple[Callable[[], Iterator[Row]], ...] = (
    linear_models, additive_models, mean_values, range_values, metric_values, partition_values,
    feature_values, tunings, weights,
)  # fmt: skip
FAMILIES = (*EXACT, *NEAR)


def values(families: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Name -> value, ready for JSON."""
    torch.set_num_threads(1)
    chosen = [one for one in FAMILIES if families is None or one.__name__ in families]
    with warnings.catch_warnings():  # estimators warn of ranges that were not given
        warnings.simplefilter("ignore")
        found = [(f"{one.__name__}/{name}", value) for one in chosen for name, value in one()]
    names = [name for name, _ in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"names must differ. Got {sorted(twice)} more than once.")
    return dict(found)


def main() -> None:
    found = values()
    if "--print" in sys.argv:
        print(json.dumps(found))
        return
    if "--write" in sys.argv:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
        STORED.write_text("{\n" + lines + "\n}\n")
    print(f"{len(found)} released values")


if __name__ == "__main__":
    main()

"""Names that stand in files that users keep, or that keys and noise are made of: frozen.

A ledger from last year must be read, a checkpoint must resume, and a run that is repeated under its
key must draw the same noise. So none of these names may change with the layout of the house: class
names in the headers of ledgers, `repr(rule)`, kinds of events, labels of random streams, persons of
BLAKE2b, keys of checkpoints and results, names of files.

They come from running winsor wherever that is possible: tiny runs, checkpoints, ledgers and a
tuning, with BLAKE2b watched. Labels that only rare paths use (ranks, audits, augmentations) come
from the literals in calls of `stream` and `subkey`.

    python tests/golden/names_on_disk.py --write     store today's names in names_on_disk.json
    python tests/golden/names_on_disk.py --print     one JSON object on standard output
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

import winsor
from winsor.core.accounting import event_from_json, event_to_json, registered
from winsor.core.ledger import Ledger

HERE = Path(__file__).parent
STORED = HERE / "names_on_disk.json"
BINDING = ("bound_key", "as_key", "fresh_key", "key_for")
PACKAGE = Path(winsor.__file__).parent
OF_AUDITS = HERE.parents[1] / "papers" / "winsor_papers" / "neighbouring.py"
"""What audits draw, so that an audit that is repeated finds the same."""
OPAQUE = {"model", "optimizer", "scheduler", "random", "iterates", "setting", "packages"}
"""What has names of others inside: of weights, of torch, of packages."""

WHERE = {
    "samplers": '"sampler" in the header of a ledger',
    "mechanisms": '"mechanism" in the header of a ledger',
    "rules": '"rule" in the header of a ledger: repr(rule)',
    "header": "keys of the configuration in the header of a run's ledger",
    "methods": '"method" and "estimator" in the headers of ledgers that single releases write',
    "events": '"event" of the kinds in a ledger, with the fields of each',
    "ledger lines": "a ledger on disk, line by line, under a known key",
    "streams": "purposes of random streams: keys of noise, batches and coins are made of them",
    "persons": "persons of BLAKE2b, of which keys and fingerprints are made",
    "parts": "names of released parts, of which keys of noise are made, and laws of noise",
    "bound": "texts to which keys from a seed are bound, beside data and settings",
    "beside a ledger": "files beside the ledger of a run whose key stays outside checkpoints",
    "rule states": "keys of a rule's state in checkpoints",
    "checkpoint": "keys of what private.save writes",
    "checkpoint, modelmix": "the same, of a run whose key stays outside",
    "run directory": "files of a finished `winsor train`, with record.keep_checkpoint",
    "config.json": "keys of a run's configuration, defaults filled in",
    "environment.json": "keys of a run's environment",
    "metrics.jsonl": "keys of a line of metrics",
    "result.json": "keys of a run's result",
    "checkpoint.pt": "keys of the checkpoint in a run directory",
    "signature.json": "keys of a run's signature, and of the statement that is signed",
    "tuning directory": "files of a finished `winsor tune`",
    "tune.json": "keys of a tuning's configuration",
    "result.json, tuning": "keys of a tuning's result",
}


def neighbour(name: str) -> Any:
    """Another file of this folder, as a module."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def keys_of(value: Any, before: str = "") -> Iterator[str]:
    """The keys of nested tables, with dots; fingerprints of keys are written as ``*``."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if "group[" in str(name):  # an option of an optimiser of torch
                continue
            known = "*" if re.fullmatch(r"[0-9a-f]{16}", str(name)) else str(name)
            path = f"{before}.{known}" if before else known
            yield path
            if name not in OPAQUE:
                yield from keys_of(inner, path)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield from keys_of(value[0], f"{before}[]")


@contextlib.contextmanager
def watched() -> Iterator[list[tuple[bytes, bytes, bytes]]]:
    """(data, key, person) of every BLAKE2b that is begun meanwhile."""
    seen: list[tuple[bytes, bytes, bytes]] = []
    real = hashlib.blake2b

    def watching(data: Any = b"", **options: Any) -> Any:
        seen.append((bytes(data), bytes(options.get("key", b"")), options.get("person", b"")))
        return real(data, **options)

    hashlib.blake2b = watching  # type: ignore[misc, assignment]
    try:
        yield seen
    finally:
        hashlib.blake2b = real  # type: ignore[misc]


def literal(node: ast.expr) -> str | None:
    """A text in the source, with ``*`` for what is computed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        value = node.value
        return value.decode() if isinstance(value, bytes) else value
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "*" for p in node.values]
        return "".join(map(str, parts))
    return None


def in_source() -> tuple[set[str], set[str], set[str]]:
    """Purposes in calls of `stream` and `subkey`, persons of BLAKE2b, and texts to which keys are
    bound, anywhere in winsor."""
    purposes, persons, bound = set(), set(), set()
    for path in [*PACKAGE.rglob("*.py"), OF_AUDITS]:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("stream", "subkey") and len(node.args) > 1:
                found = literal(node.args[1])
                purposes |= {found} if found is not None else set()
            if called in BINDING:
                bound |= {found for found in map(literal, node.args) if found is not None}
            for keyword in node.keywords:
                found = literal(keyword.value) if keyword.arg == "person" else None
                persons |= {found} if found is not None else set()
    return purposes, persons, bound


# --------------------------------------------------------------------------- what is run and read


def headers(golden: Any) -> Iterator[tuple[str, list[str]]]:
    """Runs of every rule, sampler and mechanism, as their ledgers describe them."""
    flat = winsor.rules.Flat(1.0)
    unit = [i % 24 for i in range(96)]
    mixing = winsor.ModelMix(tau_over_lr=0.15)
    settings: list[dict[str, Any]] = [{"rule": rule} for rule in golden.every_rule()]
    settings += [
        {"rule": golden.PrivateMonitor(flat)},
        {"rule": golden.UnitLength(winsor.rules.Quantile(1.0))},
        {"rule": winsor.rules.L1(1.0), "mechanism": "laplace"},
        {"rule": flat, "mechanism": winsor.Banded(bands=3)},
        {"rule": flat, "mechanism": mixing},
        {"rule": flat, "sampling": "full", "batch_size": 96},
        {"rule": flat, "sampling": "fixed", "relation": "replace_one"},
        {"rule": flat, "sampling": "allocation"},
        {"rule": flat, "sampling": "loader"},
        {"rule": flat, "sampling_rate": 0.125},
        {"rule": flat, "unit": unit, "rows_per_unit": 3, "batch_size": 8},
        {"rule": flat, "group_size": 2},
        {
            "rule": flat, "after": [golden.trained(flat, 1)], "after_in_ledger": True,
            "noise_multiplier": None, "epsilon": 50.0,
        },
    ]  # fmt: skip
    configs = [golden.trained(steps=0, **options).ledger.config for options in settings]
    yield "samplers", [config["sampler"] for config in configs]
    yield "mechanisms", [config["mechanism"] for config in configs]
    yield "rules", [config["rule"] for config in configs]
    yield "header", [key for config in configs for key in keys_of(config)]


def configs_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Configurations of ledgers in what `released.py` writes."""
    if isinstance(value, dict):
        if value.keys() == {"config", "runs", "events"}:
            yield value["config"]
        for inner in value.values():
            yield from configs_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from configs_in(inner)


def releases(golden: Any) -> Iterator[tuple[str, list[str]]]:
    """All that `released.py` does, with BLAKE2b watched."""
    families = tuple(f.__name__ for f in golden.FAMILIES if f.__name__ not in ("keys", "noise"))
    with watched() as seen:
        golden.subkey.cache_clear()  # what is remembered is not computed again
        found = golden.values(families)
        looks()
    methods = []
    for config in configs_in(found):
        named = [f"{key}={config[key]}" for key in ("estimator", "method") if key in config]
        methods += [", ".join(named)] if named else []
    yield "methods", methods
    purposes, persons, bound = in_source()
    streams, parts = set(), set()
    for data, key, person in seen:
        if person == b"winsor-lattice":
            law, _bits, _size, name = data.decode().split("\0")
            parts.add(f"{law}: {name}")
        elif key and not person and re.fullmatch(rb"[a-z][ -~]{1,40}", data):
            streams.add(re.sub(r"\d+", "*", data.decode()))
        persons |= {person.decode()} if person else set()
    yield "streams", sorted(streams | {re.sub(r"\d+", "*", one) for one in purposes})
    yield "persons", sorted(persons)
    yield "parts", sorted(parts)
    yield "bound", sorted(bound)


def looks() -> None:
    """A tuning that looks at private scores on the way: their noise has keys of its own."""
    import numpy as np

    from winsor.metrics import Accuracy
    from winsor.tuning import PRUNED, PrivateScore, Pruning, tune

    golden = neighbour("released")
    rows = np.arange(100) % 2

    def train(setting: Mapping[str, Any], job: Any) -> Any:
        ledger = Ledger({"n": 100})
        door = golden.PrepaidDoor(ledger, golden.ADD, job.key)
        count = golden.Sensitivity.per_sample(1.0, "a count")
        paid = door.pay(golden.Gaussian(job.noise_multiplier), golden.FullBatch(100), count, 1, 1)
        paid.release(np.array([50.0]))
        columns = {"targets": rows, "predictions": np.full(100, setting["guess"])}
        if job.prune(10, ledger=ledger, **columns):
            return None, ledger, PRUNED
        return None, ledger, job.measure(ledger, **columns)

    tune(
        train,
        {"guess": [1]},
        trial=lambda nm: [(GaussianDpEvent(nm), 1)],
        epsilon=3.0,
        delta=1e-5,
        pruning=Pruning({10: -9.0}, score=PrivateScore(Accuracy(), 15.0)),
        score=PrivateScore(Accuracy(), 20.0),
        random_state=bytes(range(32)),
        trials=golden.TruncatedNegativeBinomial(0.0, 0.0625),
    )


def events() -> Iterator[tuple[str, list[str]]]:
    """Every kind of event, as ledgers write it: read, and written again."""
    gaussian = {"event": "gaussian", "noise_multiplier": 2.0}
    law = {"law": "truncated_negative_binomial", "eta": 0.0, "gamma": 0.5}
    mixed = {
        "sampling_probability": 0.1, "noise_multiplier": 1.0,
        "width_ratio": 0.5, "coordinates": 4.0,
    }  # fmt: skip
    mixture = {"std": 1.0, "shifts": [0.0, 1.0], "probabilities": [0.5, 0.5]}
    samples: list[dict[str, Any]] = [
        {"event": "nothing"},
        gaussian,
        {"event": "laplace", "noise_multiplier": 2.0},
        {"event": "zcdp", "rho": 0.5, "xi": 0.0},
        {"event": "poisson", "rate": 0.1, "inner": gaussian},
        {"event": "subset", "n": 100, "size": 10, "inner": gaussian},
        {"event": "mixture_of_gaussians", **mixture},
        {"event": "repeated", "inner": gaussian, "count": 3},
        {"event": "composed", "events": [gaussian, gaussian]},
        {"event": "alternatives", "events": [gaussian]},
        {"event": "allocation", "steps": 10, "noise_multiplier": 1.0},
        {"event": "thresholded gaussian", "noise_multiplier": 2.0, "delta": 1e-6},
        {"event": "mixed_gaussian", **mixed},
        {"event": "mixed_laplace", **mixed},
        {"event": "selection", "inner": gaussian, **law},
        {"event": "selection", "inner": gaussian, "law": "poisson", "mean": 3.0},
        {"event": "selection_profile", "inner": gaussian, **law},
    ]
    yield (
        "events",
        [*registered(), *(json.dumps(event_to_json(event_from_json(one))) for one in samples)],
    )


def ledgers() -> Iterator[tuple[str, list[str]]]:
    """A ledger on disk, whose every byte is known."""
    key = "0123456789abcdef"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        ledger = Ledger({"rule": "Flat(max_grad_norm=1.0)", "n": 100}, path)
        sampled = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5))
        ledger.record(key, 0, sampled, "ab" * 16)
        ledger.record(key, 1, GaussianDpEvent(2.0), "cd" * 16)
        ledger.record_many(key, GaussianDpEvent(2.0), 3)
        ledger.note("config.json", "ef" * 32)
        ledger.close()
        lines = path.read_text().splitlines()
    yield "ledger lines", [f"{number}: {line}" for number, line in enumerate(lines)]


def checkpoints(golden: Any) -> Iterator[tuple[str, list[str]]]:
    """Whole runs, saved."""
    flat = winsor.rules.Flat(1.0)
    mixing = {"rule": flat, "mechanism": winsor.ModelMix(tau_over_lr=0.15)}
    for name, options in (("checkpoint", {"rule": flat}), ("checkpoint, modelmix", mixing)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.pt"
            golden.trained(steps=2, **options).save(path)
            yield name, list(keys_of(torch.load(path, weights_only=True)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        golden.trained(steps=1, ledger=path, seed=None, **mixing).ledger.close()
        yield "beside a ledger", [one.name for one in Path(folder).iterdir()]
    found = []
    for rule in golden.every_rule():
        state = golden.trained(rule, steps=1).state_dict()["rule"]
        found += [f"{type(rule).__name__}: {key}" for key in keys_of(state)]
    yield "rule states", found


TINY: dict[str, Any] = {
    "name": "tiny",
    "reproducible_noise": True,
    "data": {"source": "synthetic", "classes": 3, "options": {"rows": 240, "features": 5}},
    "model": {"name": "linear"},
    "rule": {"name": "flat", "max_grad_norm": 1.0},
    "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9},
    "schedule": {"name": "cosine", "warmup": 0.1},
    "budget": {"noise_multiplier": 1.5, "delta": 1e-3},
    "training": {"steps": 4, "batch_size": 40},
    "record": {"evaluations": 2, "keep_checkpoint": True, "monitor": "private"},
}


def command(*words: Any) -> None:
    """`winsor ...`, here."""
    before, sys.argv = sys.argv, ["winsor", *map(str, words)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_module("winsor", run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"winsor {' '.join(map(str, words))}: {said.getvalue()}") from None
    finally:
        sys.argv = before


def run_directories() -> Iterator[tuple[str, list[str]]]:
    """A run and a tuning, from TOML."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "tiny.toml").write_text(tomli_w.dumps(TINY))
        path = place / "run"
        command("train", place / "tiny.toml", "--run", path)
        yield "run directory", [one.name for one in path.iterdir()]
        for name in ("config.json", "environment.json", "result.json"):
            yield name, list(keys_of(json.loads((path / name).read_text())))
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        yield "metrics.jsonl", [key for row in rows for key in keys_of(row)]
        state = torch.load(path / "checkpoint.pt", weights_only=True)
        yield "checkpoint.pt", list(keys_of(state))
        private = Ed25519PrivateKey.generate()
        pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (place / "private.pem").write_bytes(pem)
        command("sign", path, "--key", place / "private.pem")
        signature = json.loads((path / "signature.json").read_text())
        yield "signature.json", list(keys_of(signature))

        space = {"optimizer.lr": {"log_uniform": [0.05, 5.0]}}
        budget = {"epsilon": 5.0, "delta": 1e-3}
        record = {"evaluations": 2}
        tuned = TINY | {"budget": budget, "record": record}
        tuned |= {"tune": {"space": space, "trials": 2, "score_std": 0.1}}
        (place / "tune.toml").write_text(tomli_w.dumps(tuned))
        path = place / "tuning"
        command("tune", place / "tune.toml", "--run", path)
        yield "tuning directory", [one.name for one in path.iterdir()]
        yield "tune.json", list(keys_of(json.loads((path / "tune.json").read_text())))
        yield "result.json, tuning", list(keys_of(json.loads((path / "result.json").read_text())))


def values() -> dict[str, list[str]]:
    """Group -> names, sorted."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    golden = neighbour("released")
    makers: list[Callable[[], Iterator[tuple[str, list[str]]]]] = [
        lambda: headers(golden), lambda: releases(golden), events, ledgers,
        lambda: checkpoints(golden), run_directories,
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {group: sorted(set(names)) for make in makers for group, names in make()}
    return {group: found[group] for group in WHERE}


def main() -> None:
    found = values()
    if "--print" in sys.argv:
        print(json.dumps(found))
        return
    if "--write" in sys.argv:
        table = {group: {"where": WHERE[group], "names": names} for group, names in found.items()}
        STORED.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{sum(map(len, found.values()))} names in {len(found)} groups")


if __name__ == "__main__":
    main()

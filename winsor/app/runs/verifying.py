"""Checking a folder: do its files agree with each other, and who signed them?

    every file      is the one that the ledger names (`folder.py`); none is missing; only then is
                    any of them parsed
    ledger          the chain of its lines, its header, its events
    config.json     budget and noise as in the header
    result.json     steps, epsilon, delta, relation, noise and the head of the chain, all against
                    the ledger; epsilon is computed anew
    prepared-K      what the ledger counts as spent before it
    key files       none may be left once the run is finished
    signature.json  head of the chain and SHA-256 of ledger, configuration and result, signed with
                    Ed25519 by the `cryptography` package

Files that agree were not damaged, and not changed one by one. Somebody who can write all of them
may still have written all of them anew: compare the head of the chain with one that was noted
elsewhere (``--head``), or have the run signed. A good signature proves that the holder of the
private key signed exactly these files. It cannot prove that the signer ran what the ledger says, or
when; and it proves nothing if the public key came together with the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from winsor.app.runs.config import Config
from winsor.app.runs.directory import ComparisonFolder, RunDirectory
from winsor.app.runs.folder import RunError, RunFolder, json_bytes, result_claims
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.chain import content_of
from winsor.core.ledger.guarantee import together
from winsor.core.ledger.ledger import Ledger

Key = TypeVar("Key", Ed25519PrivateKey, Ed25519PublicKey)
HOLDS_KEY = ("checkpoint.pt", ".checkpoint.pt.new", "ledger.key", ".ledger.key.new")

# ------------------------------------------------------------------------------ do the files agree?


def disagreements(path: str | Path, head: str | None = None, leftovers: bool = True) -> list[str]:
    """What does not fit between the files of the folder: see `RunFolder.disagreements`."""
    return folder_of(path).disagreements(head, leftovers)


def folder_of(path: str | Path) -> RunFolder:
    """The folder of a run, a comparison or a tuning, by the record that it has."""
    from winsor.app.tuning.directory import TuningDirectory

    kinds = (TuningDirectory, ComparisonFolder)
    fitting = (kind(path) for kind in kinds if (Path(path) / kind.record).exists())
    return next(fitting, RunDirectory(path))


def run_claims(run: RunDirectory, ledger: Ledger, leftovers: bool) -> Iterator[str]:
    """What the files of a run say that its ledger does not."""
    config, result = run.config(), run.result()
    yield from _config(config, ledger)
    yield from _prepared(run, ledger)
    if result is None:
        return
    yield from _result(result, ledger)
    if leftovers and not config.record.keep_checkpoint:
        for name in HOLDS_KEY:
            if (run.path / name).exists():
                yield f"{name} is left although the run is finished: it holds the noise key"


def _config(config: Config, ledger: Ledger) -> Iterator[str]:
    claims = {
        "delta": config.budget.delta,
        "relation": config.budget.relation,
        "noise_multiplier": config.budget.noise_multiplier,
    }
    for name, value in claims.items():
        if value is not None and ledger.config.get(name) != value:
            theirs = ledger.config.get(name)
            yield f"config.json says {name} = {value!r}, the header of the ledger {theirs!r}"


def _result(result: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    for name, truth in {
        "steps": len(ledger), "noise_multiplier": ledger.config.get("noise_multiplier")
    }.items():  # fmt: skip
        if result.get(name) != truth:
            yield f"result.json says {name} = {result.get(name)!r}, the ledger says {truth!r}"
    delta, relation = ledger.config.get("delta"), ledger.config.get("relation")
    yield from result_claims(result, ledger, delta, relation)


def _prepared(run: RunDirectory, ledger: Ledger) -> Iterator[str]:
    spent = together(Ledger.read(one) for one in sorted(run.path.glob("prepared-*.jsonl")))
    if len(ledger) and sorted(map(str, spent)) != sorted(map(str, ledger.before)):
        yield "prepared ledgers have not spent what the header of the ledger says"


# --------------------------------------------------------------------------------------- signatures

SIGNATURE, FORMAT = "signature.json", 1
MAKE_KEYS = (
    "Make a pair with: openssl genpkey -algorithm ed25519 -out private.pem; openssl pkey -in "
    "private.pem -pubout -out public.pem."
)


def sign(path: Path, key: Path, password: bytes | None = None) -> dict[str, Any]:
    """Write the signature of a finished run whose files agree; return what was signed."""
    private = _private_key(key, password)
    run = folder_of(path)
    run.refuse_disagreements()
    if not run.finished:
        raise RunError(f"{path} must be finished. Got no {run.result_name} instead.")
    statement = _statement(run)
    signature = private.sign(_message(statement)).hex()
    content = {"statement": statement, "signature": signature}
    run.replace(SIGNATURE, json_bytes(content))
    return statement


def signature_disagreements(path: Path, key: Path) -> Iterator[str]:
    """What speaks against the signature of the run under the public key."""
    public = _public_key(key)
    if not (path / SIGNATURE).is_file():
        yield f"{SIGNATURE} is missing: the run is not signed"
        return
    try:
        content = json.loads(content_of(path / SIGNATURE))
        signed, signature = content["statement"], bytes.fromhex(content["signature"])
        named = dict(signed)
    except (OSError, LookupError, RecursionError, TypeError, ValueError) as error:
        yield f"{SIGNATURE} cannot be read: {error}"
        return
    try:
        public.verify(signature, _message(signed))
    except InvalidSignature:
        yield f"{SIGNATURE} was not made with the private key of {key}, or was changed since"
        return
    for name, truth in _statement(folder_of(path)).items():
        if named.get(name) != truth:
            yield f"{name} is not what was signed: {named.get(name)!r} then, {truth!r} now"


def _statement(run: RunFolder) -> dict[str, Any]:
    names = (run.ledger.name, run.record, run.result_name)
    return {
        "winsor_signature": FORMAT,
        "head": Ledger.read(run.ledger).head,
        **{name: hashlib.sha256(content_of(run.path / name)).hexdigest() for name in names},
    }


def _message(statement: Any) -> bytes:
    return b"winsor run signature\n" + json.dumps(statement, sort_keys=True).encode()


def is_encrypted(key: Path) -> bool:
    """Return whether a private key asks for a password."""
    return b"ENCRYPTED" in _content(key)


def _private_key(key: Path, password: bytes | None) -> Ed25519PrivateKey:
    def load(pem: bytes) -> Any:
        return serialization.load_pem_private_key(pem, password)

    return _loaded(key, load, Ed25519PrivateKey)  # type: ignore[type-abstract]


def _public_key(key: Path) -> Ed25519PublicKey:
    load = serialization.load_pem_public_key
    return _loaded(key, load, Ed25519PublicKey)  # type: ignore[type-abstract]


def _loaded(key: Path, load: Callable[[bytes], Any], kind: type[Key]) -> Key:
    try:
        found = load(_content(key))
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        found = error
    if isinstance(found, kind):
        return found
    what = str(found) if isinstance(found, Exception) else type(found).__name__
    name = "private" if kind is Ed25519PrivateKey else "public"
    raise ConfigurationError(
        f"--key must be a file with an Ed25519 {name} key in PEM form. Got {key} instead: {what}. "
        f"{MAKE_KEYS}"
    )


def _content(key: Path) -> bytes:
    try:
        return key.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {key}: {error.strerror or error}.") from error

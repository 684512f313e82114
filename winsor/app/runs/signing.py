"""A finished run, signed: signature.json says who stood behind these very files.

What is signed is a short statement: the head of the ledger's chain and the SHA-256 of the ledger,
the configuration and the result (which names metrics and model). Ed25519, by the `cryptography`
package.

What a good signature proves: that the holder of the private key signed exactly these files. What it
cannot prove: that the signer ran what the ledger says, or when; and nothing at all if the public
key came together with the files. Get it from the signer by another way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from winsor.app.runs.directory import RunDirectory, RunError, replace_file
from winsor.app.runs.verifying import refuse_disagreements
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger

NAME = "signature.json"
FORMAT = 1
SIGNED = ("ledger.jsonl", "config.json", "result.json")
MAKE_KEYS = (
    "Make a pair with: openssl genpkey -algorithm ed25519 -out private.pem; openssl pkey -in "
    "private.pem -pubout -out public.pem."
)


def sign(path: Path, key: Path, password: bytes | None = None) -> dict[str, Any]:
    """Write the signature of a finished run whose files agree; return what was signed."""
    private = _private_key(key, password)
    if RunDirectory(path).result() is None:
        raise RunError(f"{path} must be a finished run. Got one without result.json instead.")
    refuse_disagreements(path)
    statement = _statement(path)
    signature = private.sign(_message(statement)).hex()
    content = {"statement": statement, "signature": signature}
    replace_file(path / NAME, (json.dumps(content, indent=1) + "\n").encode())
    return statement


def signature_disagreements(path: Path, key: Path) -> Iterator[str]:
    """What speaks against the signature of the run under the public key."""
    public = _public_key(key)
    if not (path / NAME).is_file():
        yield f"{NAME} is missing: the run is not signed"
        return
    try:
        content = json.loads((path / NAME).read_text(encoding="utf-8"))
        signed, signature = content["statement"], bytes.fromhex(content["signature"])
        named = dict(signed)
    except (OSError, LookupError, RecursionError, TypeError, ValueError) as error:
        yield f"{NAME} cannot be read: {error}"
        return
    try:
        public.verify(signature, _message(signed))
    except InvalidSignature:
        yield f"{NAME} was not made with the private key of {key}, or was changed since"
        return
    for name, truth in _statement(path).items():
        if named.get(name) != truth:
            yield f"{name} is not what was signed: {named.get(name)!r} then, {truth!r} now"


def _statement(path: Path) -> dict[str, Any]:
    return {
        "winsor_signature": FORMAT,
        "head": Ledger.read(path / "ledger.jsonl").head,
        **{name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in SIGNED},
    }


def _message(statement: Any) -> bytes:
    return b"winsor run signature\n" + json.dumps(statement, sort_keys=True).encode()


def is_encrypted(key: Path) -> bool:
    """Whether a private key asks for a password."""
    return b"ENCRYPTED" in _content(key)


def _private_key(key: Path, password: bytes | None) -> Ed25519PrivateKey:
    try:
        found = serialization.load_pem_private_key(_content(key), password)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(key, "private", str(error)) from error
    if not isinstance(found, Ed25519PrivateKey):
        raise _no_key(key, "private", type(found).__name__)
    return found


def _public_key(key: Path) -> Ed25519PublicKey:
    try:
        found = serialization.load_pem_public_key(_content(key))
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(key, "public", str(error)) from error
    if not isinstance(found, Ed25519PublicKey):
        raise _no_key(key, "public", type(found).__name__)
    return found


def _content(key: Path) -> bytes:
    try:
        return key.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {key}: {error.strerror or error}.") from error


def _no_key(key: Path, kind: str, found: str) -> ConfigurationError:
    return ConfigurationError(
        f"--key must be a file with an Ed25519 {kind} key in PEM form. Got {key} instead: {found}. "
        f"{MAKE_KEYS}"
    )

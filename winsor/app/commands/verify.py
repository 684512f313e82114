"""`winsor verify RUN...` and `winsor sign RUN --key PRIVATE.pem`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winsor.core.contract import ConfigurationError


def verify(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    head: Annotated[
        str | None, typer.Option(help="Head of the chain, as it was noted before.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="PUBLIC.pem", help="Also check the signature of `winsor sign`."),
    ] = None,
) -> None:
    """Check that every file of a run, a comparison or a tuning is the one that its ledger names.

    Every disagreement is printed, and the exit code is then 1. For a run whose files agree, the
    head of the ledger's chain is printed: note it elsewhere, and give it as --head later.
    """
    if head is not None and len(runs) != 1:
        raise ConfigurationError("--head must be given with one run. Got several instead.")
    for run in runs:
        if not run.is_dir():
            raise ConfigurationError(f"{run} must be the directory of a run. Got none instead.")
    from winsor.app.runs.verifying import disagreements, signature_disagreements
    from winsor.core.ledger.ledger import Ledger

    failed = False
    for run in runs:
        found = disagreements(run, head)
        if key is not None and not found:
            found = list(signature_disagreements(run, key))
        failed |= bool(found)
        for line in found:  # words of a file that a stranger may have written
            line = "".join(c if c.isprintable() else "?" for c in line)
            print(f"{run}: DISAGREES: {line}")
        if not found:
            ledger = Ledger.read(run / "ledger.jsonl")
            signed = "" if key is None else f" Signed with the key of {key}."
            print(f"{run}: agrees.{signed} {len(ledger)} releases, head of the chain {ledger.head}")
    raise typer.Exit(1 if failed else 0)


def sign(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished run.")],
    key: Annotated[
        Path, typer.Option(metavar="PRIVATE.pem", help="An Ed25519 private key in PEM form.")
    ],
) -> None:
    """Sign a finished run: the head of its chain, ledger, configuration and result.

    Writes signature.json into RUN if its files agree. Others check it with `winsor verify RUN
    --key PUBLIC.pem`. To make a pair of keys: openssl genpkey -algorithm ed25519 -out private.pem;
    openssl pkey -in private.pem -pubout -out public.pem.
    """
    if not run.is_dir():
        raise ConfigurationError(f"{run} must be the directory of a run. Got none instead.")
    from winsor.app.runs.verifying import is_encrypted
    from winsor.app.runs.verifying import sign as sign_run

    password = None
    if is_encrypted(key):
        password = typer.prompt(f"Password of {key}", hide_input=True, err=True).encode()
    statement = sign_run(run, key, password)
    print(f"{run}: signed. Head of the chain {statement['head']}. Written: signature.json")

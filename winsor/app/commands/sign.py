"""`winsor sign RUN --key PRIVATE.pem`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winsor.core.contract import ConfigurationError


def sign(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    key: Annotated[
        Path, typer.Option(metavar="PRIVATE.pem", help="An Ed25519 private key in PEM form.")
    ],
) -> None:
    """Sign a finished run: head of the chain, ledger, configuration and result.

    Writes signature.json into RUN, if its files agree. Others check it with `winsor verify RUN
    --key PUBLIC.pem`. Keys are made by: openssl genpkey -algorithm ed25519 -out private.pem;
    openssl pkey -in private.pem -pubout -out public.pem.
    """
    if not run.is_dir():
        raise ConfigurationError(f"{run} must be the directory of a run. Got none instead.")
    from winsor.app.runs.signing import is_encrypted
    from winsor.app.runs.signing import sign as sign_run

    password = None
    if is_encrypted(key):
        password = typer.prompt(f"Password of {key}", hide_input=True, err=True).encode()
    statement = sign_run(run, key, password)
    print(f"{run}: signed. Head of the chain {statement['head']}. Written: signature.json")

"""`winsor verify RUN...`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from winsor.core.contract import ConfigurationError


def verify(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    head: Annotated[
        str | None, typer.Option(help="The head of the chain, as it was noted before.")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="PUBLIC.pem", help="Also check the signature of `winsor sign`."),
    ] = None,
) -> None:
    """Check that the files of each run agree: ledger, configuration, result, model, keys.

    Exit code 1 if anything disagrees, with what it is. The head of the ledger's chain is printed:
    note it elsewhere, and give it as --head later.
    """
    if head is not None and len(runs) != 1:
        raise ConfigurationError("--head must be given with one run. Got several instead.")
    for run in runs:
        if not run.is_dir():
            raise ConfigurationError(f"{run} must be the directory of a run. Got none instead.")
    from winsor.app.runs.verifying import disagreements
    from winsor.core.ledger.ledger import Ledger  # scipy and torch, once there is something to read

    failed = False
    for run in runs:
        if (run / "tune.json").exists():
            from winsor.app.tuning.directory import TuningDirectory

            found = TuningDirectory(run).disagreements(head)
        else:
            found = disagreements(run, head)
        if key is not None and not found:
            from winsor.app.runs.signing import signature_disagreements

            found = list(signature_disagreements(run, key))
        failed |= bool(found)
        for line in found:
            print(f"{run}: DISAGREES: {line}")
        if not found:
            ledger = Ledger.read(run / "ledger.jsonl")
            signed = "" if key is None else f" Signed with the key of {key}."
            print(f"{run}: agrees.{signed} {len(ledger)} releases, head of the chain {ledger.head}")
    raise typer.Exit(1 if failed else 0)

"""`winsor plan --data public.npz`: a whole run, proposed from public stand-in rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winsor.app.commands.output import Json, print_json, print_pairs
from winsor.app.commands.plan import AllowLargeDelta
from winsor.core.checks import whole, written_whole
from winsor.tuning.public_rows import MODELS, WantedRun, propose, read_public

if TYPE_CHECKING:
    from winsor.tuning.public_rows import Proposal


def plan(
    data: Annotated[Path, typer.Option(help="PUBLIC or synthetic rows: .npz with x and y.")],
    n: Annotated[float, typer.Option("--n", help="Rows of the private dataset.")],
    epsilon: Annotated[float, typer.Option(help="Target epsilon.")],
    delta: Annotated[float | None, typer.Option(help="Default: 1/(10 n).")] = None,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "linear",
    batch_size: Annotated[int | None, typer.Option(help="Default: 2 sqrt(n).")] = None,
    steps: Annotated[int | None, typer.Option(help="Default: that of the recipe.")] = None,
    dry_steps: Annotated[int, typer.Option(help="Steps of each dry run.")] = 60,
    seed: Annotated[int, typer.Option(help="Of the dry runs.")] = 0,
    allow_large_delta: AllowLargeDelta = False,
    json: Json = False,
) -> None:
    """Propose rule, threshold, batch size, learning rate and steps from public stand-in rows.

    The file holds x (one row per record) and y: whole numbers for classes, other numbers for
    regression with Huber's loss in the units of y. Images in bytes are scaled to [-1, 1].
    """
    wanted = WantedRun(
        n=whole("n", written_whole("n", n), least=2),
        epsilon=epsilon,
        delta=delta,
        model=model,
        batch_size=batch_size,
        steps=steps,
        dry_steps=dry_steps,
        seed=seed,
        allow_large_delta=allow_large_delta,
    )
    found = propose(read_public(data), wanted)
    if json:
        print_json(found.to_json())
    else:
        _show(found)


def _show(proposal: Proposal) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    best = proposal.found.best
    console = Console()
    rows = {
        "rule": best.describe(),
        "threshold": f"{best.threshold:.4g}",
        "batch size": f"{proposal.batch_size} of {proposal.n}",
        "learning rate": f"{best.learning_rate:.4g}, momentum {best.momentum:g}, falling to zero",
        "steps": f"{proposal.steps}",
        "noise multiplier": f"{best.noise_multiplier:.4g}",
        "budget": f"epsilon {proposal.epsilon:g}, delta {proposal.delta:.3g}",
        "tail of the public norms": str(proposal.found.tail.verdict),
    }
    print_pairs(console, rows)
    ranking = Table("", "loss", "rule", "learning rate", title="dry runs on public rows", box=None)
    for place, c in enumerate(proposal.found.candidates[:6], start=1):
        ranking.add_row(f"{place}", f"{c.loss:.4g}", escape(c.describe()), f"{c.learning_rate:.4g}")
    console.print(ranking)
    console.print(f"untrained loss {proposal.found.untrained_loss:.4g}")
    if best.loss >= proposal.found.untrained_loss:
        console.print("No candidate learned: give more --dry-steps or more public rows.")

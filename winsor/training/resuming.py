"""`winsor.resume`: continue a run that was saved with `private.save`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

from winsor.training import saving
from winsor.training.loop import PrivateTraining
from winsor.training.make_private import Arguments, make_private
from winsor.training.ranks.ranks import Ranks
from winsor.training.right_kinds import refuse_wrong_kinds


def resume(
    path: str | os.PathLike[str],
    *,
    also: Mapping[str, saving.Stateful] | None = None,
    repeat: bool = True,
    **arguments: Unpack[Arguments],
) -> PrivateTraining:
    """Build the run of ``path`` again and continue it as if it had never stopped.

    The same batches, noise, dropout, augmentation, momentum and schedule follow; the account goes
    on where it was. A checkpoint that does not fit is refused with the fields that differ, and
    then neither the model nor the optimiser has changed.

    Parameters
    ----------
    path
        A file of `private.save`, or a folder of ``private.save(..., shards=True)``. It is loaded
        as data (``weights_only=True``), never run. Of several ranks, rank 0 reads a file for all.
    also
        The objects that were saved with ``also``, under the same names.
    repeat
        False goes on with new randomness and pays for every step since the checkpoint: for
        runs that cannot be repeated exactly, such as on another machine or number of ranks.
    **arguments
        Those of `winsor.make_private`, as they were. The model may have any weights.

    Examples
    --------
    >>> import tempfile, torch, winsor
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.randn(500, 3)
    >>> def arguments():
    ...     model = torch.nn.Linear(3, 2)
    ...     return {
    ...         "model": model, "optimizer": torch.optim.Adam(model.parameters()),
    ...         "dataset": TensorDataset(x, (x[:, 0] > 0).long()), "rule": winsor.rules.Flat(1.0),
    ...         "batch_size": 50, "steps": 20, "epsilon": 2.0, "delta": 1e-4,
    ...     }
    >>> path = tempfile.mkdtemp() + "/checkpoint.pt"
    >>> winsor.make_private(**arguments()).save(path)
    >>> winsor.resume(path, **arguments()).steps_done
    0
    """
    refuse_wrong_kinds(arguments)
    ranks = Ranks.here(next(arguments["model"].parameters()).device)
    state = saving.read(path, ranks)
    ledger = arguments.get("ledger")
    made = [] if ledger is None else [Path(ledger), Path(ledger).with_suffix(".key")]
    made = [file for file in made if not file.exists()]
    private = make_private(**arguments)
    try:
        saving.restore(private, state, also or {}, repeat)
    except BaseException:
        spent = len(private.ledger)
        private.detach()
        for file in made if not spent and (ranks is None or ranks.rank == 0) else ():
            file.unlink(missing_ok=True)
        raise
    return private

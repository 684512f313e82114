"""Is what a checkpoint says about optimiser and schedule of the kind that a step can use?

Torch loads any values into them and fails at the next step. A run of the command line knows which
kinds they have: they are compared before anything is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from winsor.app.runs.directory import RunError


def refuse_other_kinds(
    saved: Mapping[str, Any],
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    rule_state: Mapping[str, Any],
) -> None:
    """Raise, with the path of the value, if a saved state could not be used by these."""
    here = optimizer.state_dict()
    _compare(saved["optimizer"]["param_groups"], here["param_groups"], "optimizer.param_groups")
    _compare(saved["scheduler"], scheduler.state_dict(), "scheduler")
    for name, value in rule_state.items():
        found = saved["private"]["rule"]
        if name not in found:
            raise _damaged(f"rule.{name}", _kind(value), None)
        if _kind(value) == "a number" != _kind(found[name]):
            raise _damaged(f"rule.{name}", "a number", found[name])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for place, values in saved["optimizer"]["state"].items():
        if not (isinstance(place, int) and 0 <= place < len(parameters)):
            raise _damaged(f"optimizer.state[{place!r}]", "a parameter's number", place)
        for name, value in values.items():
            _refuse_unfit(value, parameters[place], f"optimizer.state[{place}].{name}")


def _refuse_unfit(value: Any, parameter: Tensor, path: str) -> None:
    """The memory of an optimiser: a number, or a tensor like the parameter."""
    if isinstance(value, Tensor):
        if value.shape not in (parameter.shape, torch.Size(())) or not value.is_floating_point():
            raise _damaged(path, f"a tensor of shape {tuple(parameter.shape)}", tuple(value.shape))
    elif value is not None and _kind(value) != "a number":
        raise _damaged(path, "a number or a tensor", value)


def _compare(saved: Any, here: Any, path: str) -> None:
    if isinstance(here, Mapping):
        if not isinstance(saved, Mapping) or saved.keys() != here.keys():
            raise _damaged(path, f"a table of {', '.join(map(str, here))}", saved)
        for name in here:
            _compare(saved[name], here[name], f"{path}.{name}")
    elif isinstance(here, list | tuple):
        if not isinstance(saved, list | tuple) or len(saved) != len(here):
            raise _damaged(path, f"a list of {len(here)} values", saved)
        for place, (one, two) in enumerate(zip(saved, here, strict=True)):
            _compare(one, two, f"{path}[{place}]")
    elif _kind(saved) != _kind(here):
        raise _damaged(path, _kind(here), saved)


def _kind(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "a number" if math.isfinite(value) else "infinite"
    return "nothing" if value is None else type(value).__name__


def _damaged(path: str, wanted: str, value: Any) -> RunError:
    return RunError(
        f"checkpoint.pt is damaged: {path} must be {wanted}. Got {value!r:.100} instead. Restore "
        "it from a copy."
    )

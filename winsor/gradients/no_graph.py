"""Computations on recorded tensors that must not extend the graph they come from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def without_graph(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.no_grad` as a decorator that is free where gradients are off already.

    Switching them off and on again costs as much as a small operation, several times per step.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        with torch.no_grad():
            return function(*args, **kwargs)

    return quiet

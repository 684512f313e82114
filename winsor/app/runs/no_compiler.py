"""Leave torch's compiler out of a run that compiles nothing.

The first optimiser of a process loads `torch._dynamo`, which takes as long as torch itself. Two
kinds of wrapper do it, to tell a compiler what to step over:

    `add_param_group` and others  look for the compiler's answer on the function they wrap, and
                                  fetch the compiler if there is none: the function itself is the
                                  answer when nothing is compiled
    `step` of every optimiser     switches gradients off, and marks the place for the compiler: it
                                  is replaced by one that only switches gradients off

For processes that are winsor's own (`winsor train`, `winsor compare`), and only while no compiler
is loaded.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

_ANSWER = "__dynamo_disable"


def leave_out_compiler() -> int:
    """Do so for every optimiser of torch; returns for how many methods."""
    if "torch._dynamo" in sys.modules:
        return 0
    done = 0
    for kind in list(vars(torch.optim).values()):
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
            done += sum(_answer(method) for method in vars(kind).values())
            done += _without_marks(kind)
    return done


def _answer(method: Any) -> bool:
    """Whether ``method`` is wrapped by torch._compile, and was answered for."""
    inside = getattr(method, "__wrapped__", None)
    code = getattr(method, "__code__", None)
    if inside is None or code is None or not code.co_filename.endswith("_compile.py"):
        return False
    if getattr(inside, _ANSWER, None) is None:
        setattr(inside, _ANSWER, inside)
    return True


def _without_marks(kind: type[torch.optim.Optimizer]) -> bool:
    """Whether the class's own `step` had the marks, and was replaced by one without."""
    step: Any = vars(kind).get("step")
    if getattr(getattr(step, "__code__", None), "co_name", None) != "_use_grad":
        return False

    @functools.wraps(step.__wrapped__)
    def plain(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step.__wrapped__(self, *args, **kwargs)

    kind.step = plain  # type: ignore[method-assign]
    return True

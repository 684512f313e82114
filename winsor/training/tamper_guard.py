"""Nothing trains around the door: weights and buffers change through the update, or not at all.

    version counters    of every parameter and buffer, compared around each step (`loop.py`):
                        in-place edits, a stray `optimizer.step()`, a mean written in forward
    identity            a buffer that was replaced by another tensor
    content             norms of everything, at random steps and at the end: edits through `.data`,
                        which move no counter

What changed otherwise was not released: it may hold rows, or gradients without noise, and ends in
`state_dict`. Edits that use no private rows have a door of their own: `replace_weights`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import register_optimizer_step_post_hook

from winsor.core.contract import UnsoundRelease, UnsupportedModel

EVERY = 64
"""Content is compared about once in half as many steps, at moments that nobody can foresee."""


class TamperGuard:
    """Remembers what the model was after the last update.

    The loop compares ``state`` by itself at every step, to stay quick; everything rarer is here.
    """

    def __init__(self, model: nn.Module, public_buffers: Iterable[str] = ()) -> None:
        self._model = model
        self._public = frozenset(public_buffers)
        self._chance = random.SystemRandom()
        self._kept: list[Tensor] = []
        self._names: list[str] = []
        self._content: list[float] | None = None
        self.places: list[tuple[dict[str, Any], str]] = []
        """Where each watched tensor stands: the dictionary of its module, and its name there."""
        self.state: list[int] = []
        """Identity and version of each, in turn."""
        self.content_known = False
        """True if the content after the last step is known, so that it can be compared."""
        self.steps_left = 0
        self.accept()

    def accept(self) -> None:
        """Accept what the model holds now: the start, or an edit by a named door."""
        self._names, self.places = [], []
        for path, module in self._model.named_modules():
            for held in (module._parameters, module._buffers):
                for local, tensor in held.items():
                    name = f"{path}.{local}" if path else local
                    if tensor is not None and name not in self._public:
                        self._names.append(name)
                        self.places.append((held, local))
        self.snapshot()

    def snapshot(self) -> None:
        """Remember the values that are there now: they came through the door."""
        self._kept = [held[local] for held, local in self.places]  # alive, so identities are unique
        self.state = self.now()
        self._content = [_content(tensor) for tensor in self._kept]
        self.content_known = True
        self.steps_left = self._chance.randint(1, EVERY)

    def end(self) -> None:
        """Watch nothing any more: the weights stand elsewhere now."""
        self._names, self.places, self._kept, self.state = [], [], [], []
        self._content, self.content_known = None, False

    def now(self) -> list[int]:
        """Return identity and version of each watched tensor, 0 for those that are gone."""
        return [x for h, k in self.places for x in (id(h.get(k)), getattr(h.get(k), "_version", 0))]

    def check(self, when: str, surely: bool = False) -> None:
        """Refuse if anything changed since; ``when`` says in which part of the loop we are."""
        now = self.now()
        pairs = range(0, len(now), 2)
        changed = [self._names[i // 2] for i in pairs if now[i : i + 2] != self.state[i : i + 2]]
        if self._content is not None and not changed:
            found = [_content(held[local]) for held, local in self.places]
            changed = [
                name
                for name, old, new in zip(self._names, self._content, found, strict=True)
                if old != new and not (math.isnan(old) and math.isnan(new))
            ]
            if not changed:  # what was refused once is refused again
                self._content, self.content_known = None, False
        if surely:
            known = {*self._names, *self._public}
            changed += [name for name, _ in self._model.named_buffers() if name not in known]
        if changed:
            refuse_changed(self._model, changed, when)


def count_fused_steps(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Count steps of fused optimisers, which move no counter by themselves
    (`transformers.Trainer`)."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            increment_version(group["params"])


register_optimizer_step_post_hook(count_fused_steps)


def refuse_changed(model: nn.Module, changed: Sequence[str], when: str) -> NoReturn:
    """Say what changed, why that matters, and which door it should have taken."""
    names = ", ".join(changed[:5]) + (", ..." if len(changed) > 5 else "")
    buffers = dict(model.named_buffers())
    if all(name in buffers for name in changed):
        raise UnsupportedModel(
            f"buffers must not be written while rows pass. Got {names} changed {when}: what they "
            "hold was computed from private rows and was never released. Remove that update, or, "
            "if it does not depend on rows, name it in make_private(public_buffers=[...])."
        )
    raise UnsoundRelease(
        f"weights must change by private.step alone. Got {names} changed {when}, which no release "
        "paid for: a raw optimizer.step(), a trainer, or an edit by hand. If the new values do not "
        "come from private rows, make the change inside `with private.replacing_weights():`."
    )


@torch.no_grad()
def _content(tensor: Tensor) -> float:
    """Return a number that an edit would change."""
    if not tensor.dtype.is_floating_point:
        return float(tensor.detach().sum())
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64))

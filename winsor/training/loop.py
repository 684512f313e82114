"""The loop a PyTorch user sees: `batches()`, `step(losses)`, `spent()`.

    for batch in private.batches():
        losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
        private.step(losses)

One object walks the path of the data: feed -> engine (per-sample view) -> rule (bound) -> door
(record, noise) -> optimiser. It holds no privacy logic of its own. Everything after the door is
post-processing of released values, so any `torch.optim` optimiser and scheduler is sound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from winsor.core.checks import whole
from winsor.core.contract import (
    BudgetExceeded,
    LedgerError,
    ProtocolError,
    UnsupportedModel,
)
from winsor.core.door import Door
from winsor.gradients.joined import JoinedView
from winsor.gradients.view import Engine, View
from winsor.rules.rule import Rule, Sums, no_rows
from winsor.training.checkpoint import Resumable
from winsor.training.epochs import Epochs
from winsor.training.feeding.feed import Feed, Fragment
from winsor.training.grouping import Grouping
from winsor.training.guard import ModelGuard
from winsor.training.iterates import Ball, Iterates
from winsor.training.loop_order import refuse_another_round, refuse_bad_losses, refuse_used_graph
from winsor.training.ranks.ranks import Ranks
from winsor.training.ranks.uneven import GO_ON, STOP, UnevenSteps
from winsor.training.ranks.view import RanksView
from winsor.training.rehearsal import Loss
from winsor.training.reported import Reported
from winsor.training.row_checks import RowChecks
from winsor.training.showing import Shown
from winsor.training.update import Update


@dataclass(frozen=True)
class StepBudget:
    """How long the run may go on: the planned steps, and the steps a target epsilon allows."""

    delta: float
    planned_steps: int
    epsilon: float | None = None
    allowed_steps: int | None = None


class PrivateTraining(Shown, Reported, Resumable):
    """A private training run. Build it with `winsor.make_private`.

    Examples
    --------
    >>> import torch, winsor
    >>> from torch.utils.data import TensorDataset
    >>> x = torch.randn(400, 3)
    >>> model = torch.nn.Linear(3, 2)
    >>> private = winsor.make_private(
    ...     model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     dataset=TensorDataset(x, (x[:, 0] > 0).long()), rule=winsor.rules.Flat(1.0),
    ...     batch_size=40, steps=10, noise_multiplier=2.0, delta=1e-4,
    ... )
    >>> for rows, labels in private.batches():
    ...     losses = torch.nn.functional.cross_entropy(model(rows), labels, reduction="none")
    ...     done = private.step(losses)
    >>> print(private.spent())
    (epsilon=0.6273, delta=0.0001)-DP, add or remove one, 10 steps, Poisson(n=400, rate=0.1), \
certified by PLD
    """

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        rule: Rule,
        door: Door,
        feed: Feed,
        update: Update,
        budget: StepBudget,
        iterates: Iterates | None = None,
        ball: Ball | None = None,
        guard: ModelGuard | None = None,
        conditions: tuple[str, ...] = (),
        grouping: Grouping | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.budget = budget
        self.steps_done = 0
        self._engine = engine
        self._rule = rule
        self._door = door
        self._feed = feed
        self._update = update
        update.seal = door.seal
        self._iterates = iterates or Iterates("last")
        self._ball = ball
        self._grouping = grouping
        self._ranks = ranks
        self._uneven = None if ranks is None else UnevenSteps(ranks)
        self._views = 1 if grouping is None else grouping.views
        first = rule.init(dict(update.parameters), door.sampler.expected_size)
        self._rule_state = rule.with_key(first, feed.key)
        self._open: Fragment | None = None
        self._sums: Sums | None = None
        self._held: list[View] = []
        self._neutralised = 0
        self._neutralised_before = 0  # the step that is under way
        self._resumed_at_end = False
        self._first = 0  # the step at which the current key began
        self._is_new = not door.ledger.steps(door.run)
        self._conditions = [f"rule {rule!r}", *conditions]
        self._guard = guard or ModelGuard(model)
        self._rows = RowChecks(model, engine, feed)
        self._batchnorms = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]
        self._iterates.update(0, update.parameters)
        self.note_build()
        engine.attach()

    # ------------------------------------------------------------------------------ the loop

    def batches(self, steps: int | None = None) -> Iterator[Any]:
        """Yield the physical batches of the next ``steps`` logical steps (default: all planned).

        Call `step` exactly once for each. An empty Poisson batch yields nothing: its step (noise
        only, accounted like any other) is done here.
        """
        self._refuse_unresumed()
        count = self._steps_to_run(steps)
        affordable = min(count, self._affordable_steps())
        if self._iterates.put_back(self._update.parameters):
            self._guard.note()
        self._engine.recording(True)
        try:
            for fragments in self._feed.steps(self.steps_done - self._first, affordable):
                before = self.steps_done
                yield from self._logical_batch(fragments)
                if self.steps_done == before:
                    self._finish()
                    if self._uneven is not None and not self._follow_others():
                        return
                elif self._uneven is not None:
                    self._uneven.say(GO_ON)
        except GeneratorExit:
            if self._uneven is not None:
                with suppress(ProtocolError):  # nobody is left to be told
                    self._uneven.say(STOP)
            raise
        finally:
            self._open = None
            self._engine.recording(False)
        self._guard.check("after the last step", surely=True)
        if self.steps_done >= self.budget.planned_steps:
            self.load_released_iterate()
        if affordable < count:
            self._refuse_overspending()

    def _logical_batch(self, fragments: Iterator[Fragment]) -> Iterator[Any]:
        """The physical batches of one logical step, each of which must be answered by `step`."""
        self._refuse_if_model_changed()
        if self._rows.loss is not None:
            self._rows.check_if_due(self.steps_done)
        self._sums, self._held = None, []
        self._neutralised_before = self._neutralised
        for fragment in fragments:
            self._open = fragment
            if self._uneven is not None:
                self._uneven.begins(self._feed.drawn)
            yield fragment.batch
            if self._open is not None:
                raise ProtocolError(
                    "each batch needs one private.step(losses) before the next is drawn. Got no "
                    "step for the last batch: skipping rows would change the sampling that the "
                    "guarantee rests on."
                )

    def epochs(self) -> Epochs:
        """The same batches, epoch by epoch: ``for epoch in private.epochs(): for batch in epoch``.

        ``len()`` of both counts what is left: epochs, and logical steps (`epochs.py`).
        """
        return Epochs(self)

    def step(self, losses: Tensor) -> bool:
        """Use one physical batch. Returns True when this completed a logical step (an update).

        ``losses`` holds one value per row, with its graph: ``reduction="none"``.
        """
        fragment = self._open
        if fragment is None:
            raise ProtocolError(
                "private.step must be called once for each batch, inside `for batch in "
                "private.batches()`. Got a call outside: rows that the sampler did not draw have "
                "no sampling rate and cannot be accounted for."
            )
        refuse_bad_losses(losses, fragment.size * self._views)
        if self._guard.state != [
            x for h, k in self._guard.places for x in (id(h[k]), h[k]._version)
        ]:
            self._guard.check("while the losses were computed")
        try:
            if self._grouping is None:
                view = self._engine.view(losses)
            else:
                view = self._grouping.view(self._engine, losses, fragment)
            with torch.no_grad():  # once, for all that follows
                if self._rule.couples_rows:
                    self._held.append(view)
                else:
                    self._add(view)
                self._open = None
                if fragment.last:
                    self._finish()
        except RuntimeError as error:
            refuse_used_graph(error)
            raise
        return fragment.last

    def _add(self, view: View) -> None:
        sums = self._rule.contributions(view, self._rule_state)
        self._sums = sums if self._sums is None else _added(self._sums, sums)
        self._neutralised += view.neutralised

    def _finish(self) -> None:
        """Release the logical batch and update the model."""
        if self._held or (self._ranks is not None and self._rule.couples_rows):
            self._add(self._whole_batch())
        sums = self._sums if self._sums is not None else self._empty_sums()
        if self._ranks is not None and not self._rule.couples_rows:
            sums = self._ranks.add_up(sums)
        parts = self._rule.bounded(sums, self._rule_state)
        released = self._door.release(self.steps_done - self._first, parts)
        gradient, self._rule_state = self._rule.after(released, self._rule_state)
        self._update.apply(gradient)
        if self._ball is not None:
            self._ball.project_(self._update.parameters)
        self._sums, self._held = None, []
        self.steps_done += 1
        guard = self._guard
        guard.state = [x for h, k in guard.places for x in (id(h[k]), h[k]._version)]
        guard.steps_left -= 1
        if guard.steps_left <= 0 or self.steps_done == self.budget.planned_steps:
            guard.note()
        if self._iterates.kind != "last":
            self._iterates.update(self.steps_done, self._update.parameters)

    def _whole_batch(self) -> View:
        """All rows of the logical batch, for a rule that must see them at once."""
        held = self._held
        view: View = JoinedView(held) if len(held) > 1 else held[0] if held else self._no_rows()
        return view if self._ranks is None else RanksView(view, self._ranks)

    def _no_rows(self) -> View:
        return no_rows(self._update.parameters)

    def _empty_sums(self) -> Sums:
        """What the rule contributes for a batch without rows, in the shapes of a real one."""
        return self._rule.contributions(self._no_rows(), self._rule_state)

    # -------------------------------------------------------------------------- safety checks

    def check(self, loss: Loss) -> None:
        """Refuse a ``loss(model, batch)`` whose rows mix; and again at random later steps.

        A few rows are played alone and among others, and must not change (`independence.py`).
        Nothing about them is returned.
        """
        if self._open is not None:
            raise ProtocolError(
                "private.check must be called before the loop or after private.step. Got a call "
                "while a batch is open: what was recorded of it would be lost."
            )
        self._rows.check(loss, self.steps_done)

    def _steps_to_run(self, steps: int | None) -> int:
        if steps is not None:
            return whole("steps", steps)
        remaining = self.budget.planned_steps - self.steps_done
        if remaining <= 0 and not self._resumed_at_end:
            refuse_another_round(self.budget.planned_steps)
        self._resumed_at_end = False  # the loop that was saved had nothing left to do
        return max(0, remaining)

    def _affordable_steps(self) -> int:
        """Steps that the target still covers. Steps repeated after a resume are paid already."""
        if self.budget.allowed_steps is None:
            return sys.maxsize
        ledger = self._door.ledger
        repeated = max(0, ledger.steps(self._door.run) - (self.steps_done - self._first))
        return repeated + max(0, self.budget.allowed_steps - len(ledger))

    def _refuse_overspending(self) -> NoReturn:
        raise BudgetExceeded(
            f"step {len(self._door.ledger) + 1} would exceed epsilon = {self.budget.epsilon} at "
            f"delta = {self.budget.delta}: {self.budget.allowed_steps} steps are covered and all "
            "are spent. No data were touched for it. Plan a new run with more noise or a larger "
            "budget."
        )

    def _refuse_unresumed(self) -> None:
        """A key that is in the ledger already belongs to a run that is to be continued."""
        if not self._is_new:
            raise LedgerError(
                f"the ledger {self._door.ledger.path} already holds releases under this run's key. "
                "Starting anew would put the same noise on other sums. Continue that run with "
                "load_state_dict (or resume=True, if it was stopped before its first checkpoint), "
                "or give this one another seed or ledger."
            )

    def _refuse_if_model_changed(self) -> None:
        guard = self._guard
        if guard.armed or guard.state != [
            x for h, k in guard.places for x in (id(h[k]), h[k]._version)
        ]:
            guard.check("between two steps")
        for name, module in self._batchnorms:
            if module.training:
                raise UnsupportedModel(
                    f"{name} is a BatchNorm in training mode, which mixes rows of the batch. Put "
                    "it in eval mode, or replace it: winsor.gradients.replace_batchnorm(model)."
                )
        for name, parameter in self._update.parameters.items():
            if not parameter.requires_grad:
                raise ProtocolError(
                    f"{name} was frozen after make_private. Freeze parameters before, so that no "
                    "noise is added to them, and build the run anew."
                )

    # ------------------------------------------------------------------------- named doors

    @contextmanager
    def replacing_weights(self) -> Iterator[None]:
        """Edit weights or buffers by hand, with values that do not come from private rows.

        Loading other weights, swapping in an average, re-initialising a head. The guarantee names
        the edit among its conditions.
        """
        self._guard.check("since the last step")
        yield
        self._guard.adopt()
        self._conditions.append(
            f"weights were edited by hand after step {self.steps_done}, without private rows"
        )

    def load_released_iterate(self) -> nn.Module:
        """Put the chosen iterate (``iterate="averaged"`` or ``"random"``) into the model.

        The last planned step does it by itself. The run can go on: it then starts from the last
        iterate again.
        """
        self._iterates.show(self._update.parameters)
        self._guard.note()
        return self.model

    def detach(self) -> nn.Module:
        """End the run: remove every hook and return the model as a plain module."""
        self._engine.detach()
        self._door.ledger.close()
        shards = getattr(self._update, "shards", None)
        if shards is not None:
            shards.give_back()
            self._guard.end()
        return self.model


def _added(sums: Sums, more: Sums) -> Sums:
    """Sums over rows add up over fragments."""
    for name, value in more.items():
        if isinstance(value, dict):
            target = sums[name]
            torch._foreach_add_([target[k] for k in value], list(value.values()))
        else:
            sums[name] = sums[name] + value
    return sums

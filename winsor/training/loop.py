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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from winsor.core.arithmetic.slack import SLACK
from winsor.core.checks import probability, whole
from winsor.core.contract import (
    Bounded,
    BudgetExceeded,
    Guarantee,
    LedgerError,
    LossError,
    Neighbouring,
    ProtocolError,
    UnsoundRelease,
    UnsupportedModel,
)
from winsor.core.ledger.guarantee import guarantee
from winsor.core.ledger.ledger import Ledger
from winsor.core.sampling.samplers import Sampler
from winsor.gradients.view import JoinedView, View
from winsor.rules.rule import Rule, State, Sums, no_rows
from winsor.training.checks.arguments import (
    refuse_another_round,
    refuse_many_places,
    refuse_used_graph,
)
from winsor.training.checks.trial_pass import Loss
from winsor.training.epochs import Epochs
from winsor.training.feeding.feed import Fragment
from winsor.training.feeding.slots import only_rows
from winsor.training.ranks.agreement import GO_ON, STOP
from winsor.training.ranks.shared import RanksView
from winsor.training.repr import as_card, in_text
from winsor.training.saving.state import RunState

_Value = TypeVar("_Value")


class _fixed(Generic[_Value]):
    """A property of a run that the ledger relies on: setting it is refused with the reason."""

    def __init__(self, read: Callable[[Any], _Value]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> _Value:
        return self._read(instance)

    def __set__(self, instance: Any, value: _Value) -> None:
        raise UnsoundRelease(
            f"{self._read.__name__} of a running training cannot be changed by hand: the ledger "
            "accounts for what the run was built with. Build a new run with make_private."
        )


class PrivateTraining(RunState):
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

    # ------------------------------------------------------------------------------ the loop

    def batches(self, steps: int | None = None) -> Iterator[Any]:
        """Yield the physical batches of the next ``steps`` logical steps (default: all planned).

        Call `step` exactly once for each. An empty Poisson batch yields nothing: its step (noise
        only, accounted like any other) is done here.
        """
        self._refuse_unresumed()
        if self._is_half_done:
            self._refuse_half_done()
        count = self._steps_to_run(steps)
        affordable = min(count, self._affordable_steps())
        if self._iterates.put_back(self._update.parameters):
            self._guard.snapshot()
        self._engine.recording(True)
        try:
            for fragments in self._feed.steps(self.steps_done - self._first, affordable):
                before = self.steps_done
                yield from self._logical_batch(fragments)
                if self._is_half_done:
                    self._refuse_half_done()
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
        """Yield the physical batches of one logical step; each must be answered by `step`."""
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
        """Yield the same batches, epoch by epoch: ``for epoch in private.epochs(): for batch in
        epoch``.

        ``len()`` of both counts what is left: epochs, and logical steps (`epochs.py`).
        """
        return Epochs(self)

    def step(self, losses: Tensor) -> bool:
        """Use one physical batch. Returns True when this completed a logical step (an update).

        ``losses`` holds one value per row, with its graph: ``reduction="none"``.
        """
        if self._is_half_done:
            self._refuse_half_done()
        fragment = self._open
        if fragment is None:
            raise ProtocolError(
                "private.step must be called once for each batch, inside `for batch in "
                "private.batches()`. Got a call outside: rows that the sampler did not draw have "
                "no sampling rate and cannot be accounted for."
            )
        refuse_bad_losses(losses, fragment.size * self._views)
        if self._guard.state != identities(self._guard.places):
            self._guard.check("while the losses were computed")
        try:
            if fragment.slots is not None:
                view = only_rows(self._engine, losses, fragment.slots)
            elif self._grouping is None:
                view = self._engine.view(losses)
            else:
                view = self._grouping.view(self._engine, losses, fragment)
            if view.places > self._most_places:
                refuse_many_places(view.places, self._most_places)
            self._open, self._is_half_done = None, True
            with torch.no_grad():  # once, for all that follows
                if self._rule.couples_rows:
                    self._held.append(view)
                else:
                    self._add(view)
                if fragment.last:
                    self._finish()
        except RuntimeError as error:
            refuse_used_graph(error)
            raise
        self._is_half_done = False
        return fragment.last

    def _add(self, view: View) -> None:
        sums = self._rule.contributions(view, self._rule_state)
        self._sums = sums if self._sums is None else _added(self._sums, sums)
        self._neutralised += view.neutralised

    def _finish(self) -> None:
        """Release the logical batch and update the model; once begun, all of it or never again."""
        self._is_half_done = True
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
        guard.state = identities(guard.places)
        guard.steps_left -= 1
        if guard.steps_left <= 0 or self.steps_done == self.budget.planned_steps:
            guard.snapshot()
        if self._iterates.kind != "last":
            self._iterates.update(self.steps_done, self._update.parameters)
        self._is_half_done = False

    def _whole_batch(self) -> View:
        """Return all rows of the logical batch, for a rule that must see them at once."""
        held = self._held
        view: View = JoinedView(held) if len(held) > 1 else held[0] if held else self._no_rows()
        return view if self._ranks is None else RanksView(view, self._ranks)

    def _no_rows(self) -> View:
        return no_rows(self._update.parameters)

    def _empty_sums(self) -> Sums:
        """Return the rule's sums for a batch without rows, in the shapes of a real one."""
        return self._rule.contributions(self._no_rows(), self._rule_state)

    # ------------------------------------------------------------------------------- reports

    def spent(self, delta: float | None = None) -> Guarantee:
        """Certify the guarantee for every step in the ledger so far."""
        self._guard.check("since the last step")
        delta = self.budget.delta if delta is None else probability("delta", delta)
        door = self._door
        numbers = "what is recorded of a row is a function of the row"
        if self._feed.slots is not None:
            numbers += " and its slot: the control flow of kernels does not read values"
        rounding = (
            f"{SLACK:g} of each bound covers rounding, up to {self._most_places:,} places a row"
        )
        own = [*self._conditions, *self._rows.conditions, numbers, rounding]
        conditions = [*own, *door.conditions]
        return guarantee([door.ledger], delta, door.relation, [str(door.sampler)], conditions)

    @_fixed
    def noise_multiplier(self) -> float:
        """Noise per step, in units of the sensitivity."""
        return self._door.mechanism.noise_multiplier

    @_fixed
    def delta(self) -> float:
        """Delta at which the budget was planned."""
        return self.budget.delta

    @_fixed
    def relation(self) -> Neighbouring:
        """Neighbouring relation of the guarantee."""
        return self._door.relation

    @_fixed
    def rule(self) -> Rule:
        """Rule that bounds what each row or unit contributes."""
        return self._rule

    @property
    def rule_state(self) -> State:
        """The rule's public state (for instance an adaptive threshold)."""
        return self._rule_state

    @property
    def ledger(self) -> Ledger:
        """Ledger in which every release of this run is recorded."""
        return self._door.ledger

    @_fixed
    def sampler(self) -> Sampler:
        """Sampler that draws the rows or units of each step."""
        return self._door.sampler

    @_fixed
    def protects_units(self) -> bool:
        """Return whether one person with all rows is protected, and not only one row."""
        return self._feed.units is not None

    @property
    def neutralised_rows_not_private(self) -> int:
        """Rows whose gradient was not finite and counted as zero. Exact, hence NOT PRIVATE."""
        return self._neutralised

    def public_parts(self) -> dict[str, Bounded]:
        """Return what the next step will release for a batch without rows: bounds and shares, no
        data."""
        return self._rule.bounded(self._empty_sums(), self._rule_state)

    def explain(self) -> str:
        """Say what the engine decided for each layer."""
        return self._engine.explain()

    def __repr__(self) -> str:
        return in_text(self)

    def _repr_html_(self) -> str:
        return as_card(self)

    # -------------------------------------------------------------------------- safety checks

    def check(self, loss: Loss) -> None:
        """Refuse a ``loss(model, batch)`` whose rows mix; and again at random later steps.

        A few rows are played alone and among others, and must not change (`row_independence.py`).
        Nothing about them is returned. With ``group_size=`` the loss gives all views of a row.
        """
        if self._open is not None:
            raise ProtocolError(
                "private.check must be called before the loop or after private.step. Got a call "
                "while a batch is open: what was recorded of it would be lost."
            )
        per_row = loss if self._grouping is None else self._grouping.per_row(loss)
        self._rows.check(per_row, self.steps_done)

    def _steps_to_run(self, steps: int | None) -> int:
        if steps is not None:
            return whole("steps", steps)
        remaining = self.budget.planned_steps - self.steps_done
        if remaining <= 0 and not self._resumed_at_end:
            refuse_another_round(self.budget.planned_steps)
        self._resumed_at_end = False  # the loop that was saved had nothing left to do
        return max(0, remaining)

    def _affordable_steps(self) -> int:
        """Count steps that the target covers; those repeated after a resume are paid already."""
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
        """Refuse a key that is in the ledger already: that run is to be continued."""
        if not self._is_new:
            raise LedgerError(
                f"the ledger {self._door.ledger.path} already holds releases under this run's key. "
                "Starting anew would put the same noise on other sums. Continue that run with "
                "load_state_dict (or resume=True, if it was stopped before its first checkpoint), "
                "or give this one another seed or ledger."
            )

    def _refuse_if_model_changed(self) -> None:
        guard = self._guard
        if guard.content_known or guard.state != identities(guard.places):
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
        self._guard.accept()
        self._conditions.append(
            f"weights were edited by hand after step {self.steps_done}, without private rows"
        )

    def load_released_iterate(self) -> nn.Module:
        """Put the chosen iterate (``iterate="averaged"`` or ``"random"``) into the model.

        The last planned step does it by itself. The run can go on: it then starts from the last
        iterate again.
        """
        self._iterates.show(self._update.parameters)
        self._guard.snapshot()
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


def identities(places: Sequence[tuple[dict[str, Any], str]]) -> list[int]:
    """Return identity and version of each watched tensor, as `TamperGuard.state` keeps them."""
    return [x for held, name in places for x in (id(held[name]), held[name]._version)]


def _added(sums: Sums, more: Sums) -> Sums:
    """Add up sums over rows of two fragments."""
    for name, value in more.items():
        if isinstance(value, dict):
            target = sums[name]
            torch._foreach_add_([target[k] for k in value], list(value.values()))
        else:
            sums[name] = sums[name] + value
    return sums


def refuse_bad_losses(losses: Tensor, rows: int) -> None:
    """Refuse anything but one value per row of the batch, with its graph to the parameters."""
    if not isinstance(losses, Tensor) or losses.ndim != 1 or losses.shape[0] != rows:
        raise LossError(
            f"losses must be a vector with one value per row of the batch: shape ({rows},). Got "
            f"{_shape(losses)} instead. {_remedy(losses, rows)}"
        )
    if not losses.requires_grad:
        raise LossError(
            "losses must carry their graph to the parameters. Got a tensor without one. Do not "
            "call .detach() or .item(), and compute the losses outside torch.no_grad()."
        )
    if not losses.dtype.is_floating_point:
        raise LossError(f"losses must be floating point. Got {losses.dtype} instead.")


def _shape(losses: object) -> str:
    return str(tuple(losses.shape)) if isinstance(losses, Tensor) else type(losses).__name__


def _remedy(losses: object, rows: int) -> str:
    if isinstance(losses, Tensor) and losses.ndim > 1 and losses.shape[0] == rows:
        return (
            "Average within each row: losses.flatten(1).mean(1). Check that outputs and targets "
            "have the same shape, or they are broadcast against each other."
        )
    return 'Use reduction="none" and average only within a row.'

"""The checks that every rule must pass. `test_battery.py` runs them for every rule it discovers.

A check takes a rule and raises AssertionError when the rule's claim does not hold.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from winsor.core.accounting.lattice import WIDEST, on_grid
from winsor.core.contract import Bounded, Neighbouring, Released, Tree
from winsor.core.door import Door
from winsor.core.ledger.ledger import Ledger
from winsor.core.noise.gaussian import Gaussian
from winsor.core.randomness import new_key
from winsor.core.sampling.samplers import Poisson
from winsor.gradients.rows import RowsView
from winsor.rules.rule import Rule, State

SHAPES = {"weight": (3, 2), "bias": (3,)}
EXPECTED_SIZE = 4.0
SLACK = 1 + 1e-4  # float32 sums of numbers up to 1e30 against exact bounds


def parameters() -> Tree:
    return {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def rows_from(matrix: Tensor) -> Tree:
    """Rows over the battery's parameters from an (n, 9) matrix."""
    weight, bias = matrix.split([6, 3], dim=1)
    return {"weight": weight.reshape(-1, 3, 2), "bias": bias}


def bounded_parts(rule: Rule, matrix: Tensor, losses: Tensor) -> dict[str, Bounded]:
    state = rule.init(parameters(), EXPECTED_SIZE)
    view = RowsView(rows_from(matrix), losses)
    return rule.bounded(rule.contributions(view, state), state)


def flat_value(part: Bounded) -> Tensor:
    leaves = part.value.values() if isinstance(part.value, dict) else [part.value]
    return torch.cat([leaf.reshape(-1).double() for leaf in leaves])


def adversarial_batches() -> list[tuple[str, Tensor, Tensor]]:
    """(name, rows, losses): what a hostile or merely unlucky dataset can hold."""
    generator = torch.Generator().manual_seed(7)
    normal = torch.randn(6, 9, generator=generator)
    aligned = torch.zeros(5, 9)
    aligned[:, 0] = -1e6
    aligned[-1, 0] = 1e6  # the record that bumps another across a rank boundary
    huge = normal.clone()
    huge[2] = 1e30
    broken = normal.clone()
    broken[1, 3], broken[4, 0] = float("nan"), float("inf")
    cases = {
        "normal": normal,
        "zeros": torch.zeros(4, 9),
        "opposed": aligned,
        "huge": huge,
        "huge last": torch.cat([normal, torch.full((1, 9), -1e30)]),
        "broken": broken,
        "broken last": torch.cat([normal, torch.full((1, 9), float("nan"))]),
        "duplicates": normal[:1].repeat(5, 1),
        "tiny": normal * 1e-20,
        "one row": normal[:1] * 100,
        "heavy": normal * torch.tensor([1e-3, 1.0, 1e3, 1e6, 1.0, 1e4])[:, None],
    }
    named = []
    for name, rows in cases.items():
        losses = rows.nan_to_num(0, 0, 0).abs().mean(1).clamp(max=1e6)
        named.append((name, rows, losses))
    return named


def check_bound_add_remove(rule: Rule) -> None:
    """Dropping the last record moves each part by no more than it claims.

    The last position loses no generality (rules are permutation invariant), and it keeps the
    random draws that randomised rules attach to the other positions.
    """
    for name, rows, losses in adversarial_batches():
        _assert_close_enough(rule, name, (rows, losses), (rows[:-1], losses[:-1]), "add_remove")


def check_bound_replace(rule: Rule) -> None:
    """Replacing the last record moves each part by no more than it claims."""
    for name, rows, losses in adversarial_batches():
        for factor in (-1.0, 1e8, 0.0):
            other = rows.clone()
            other[-1] = (rows[-1].nan_to_num(1.0, 1.0, -1.0) * factor).clamp(-1e30, 1e30)
            changed = losses.clone()
            changed[-1] = abs(factor)
            _assert_close_enough(rule, name, (rows, losses), (other, changed), "replace")


def _assert_close_enough(
    rule: Rule,
    name: str,
    one: tuple[Tensor, Tensor],
    other: tuple[Tensor, Tensor],
    relation: str,
) -> None:
    here, there = bounded_parts(rule, *one), bounded_parts(rule, *other)
    assert here.keys() == there.keys()
    for part in here:
        moved = float((flat_value(here[part]) - flat_value(there[part])).norm())
        claimed = getattr(here[part].sensitivity, relation)
        assert moved <= claimed * SLACK, (
            f"{rule!r}: on {name!r} the part {part!r} moved by {moved}, claimed {claimed}"
        )


def check_finite(rule: Rule) -> None:
    """Whatever the rows hold, what goes to the mechanism is finite."""
    for name, rows, losses in adversarial_batches():
        for part, bounded in bounded_parts(rule, rows, losses).items():
            assert flat_value(bounded).isfinite().all(), f"{rule!r}: {part} on {name}"


def check_permutation_invariant(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(11)
    rows = torch.randn(12, 9, generator=generator) * torch.rand(12, 1, generator=generator) * 10
    losses = rows.abs().mean(1)
    order = torch.randperm(12, generator=generator)
    one, other = bounded_parts(rule, rows, losses), bounded_parts(rule, rows[order], losses[order])
    for part in one:
        torch.testing.assert_close(
            flat_value(one[part]), flat_value(other[part]), rtol=1e-4, atol=1e-5
        )


def make_door(rule: Rule, relation: Neighbouring, n: int = 100) -> Door:
    sampler = Poisson(n, EXPECTED_SIZE / n)
    return Door(Ledger({"rule": repr(rule)}), Gaussian(0.8), sampler, relation, new_key(seed=3))


def check_events_independent_of_data(rule: Rule) -> None:
    """The event is the same for every batch, the empty one (the dry run) included."""
    for relation in Neighbouring:
        door = make_door(rule, relation)
        empty = bounded_parts(rule, torch.zeros(0, 9), torch.zeros(0))
        planned = door.event(empty)
        for _, rows, losses in adversarial_batches():
            assert door.event(bounded_parts(rule, rows, losses)) == planned


def check_noise_is_as_claimed(rule: Rule) -> None:
    """The noise that is really added has the standard deviation that the event was built from."""
    door = make_door(rule, Neighbouring.ADD_OR_REMOVE_ONE)
    drawn: dict[str, list[Tensor]] = {}
    for step in range(400):
        parts = bounded_parts(rule, torch.zeros(3, 9), torch.zeros(3))
        before = {name: flat_value(part).clone() for name, part in parts.items()}
        released = door.release(step, parts)
        for name, part in parts.items():
            noise = (flat_value(part) - before[name]) / released.std[name]
            drawn.setdefault(name, []).append(noise)
    multipliers = {
        name: released.std[name] / part.sensitivity.add_remove for name, part in parts.items()
    }
    joint = sum(m**-2 for m in multipliers.values()) ** -0.5
    # The grid that noise is added on takes its share: wider by that, and by nothing else.
    assert 0.8 <= joint <= 0.8 * WIDEST
    sizes = {name: flat_value(part).numel() for name, part in parts.items()}
    assert released.std == on_grid(door.mechanism, parts, sizes)[0]
    for name, pieces in drawn.items():
        values = torch.cat(pieces)
        deviations = (values.var() - 1).abs() / (2 / len(values)) ** 0.5
        assert deviations < 4.5, f"{rule!r}: noise of {name} has variance {values.var()}"
        assert values.mean().abs() * len(values) ** 0.5 < 4.5


# ------------------------------------------------------------------------- after the release


def check_after_reads_released_values_only(rule: Rule) -> None:
    """`after` is post-processing: gradient and next state follow from what was released and from
    public state. Two batches that led to the same release lead to the same of both, bit for bit,
    and to the same bounded parts of the next step."""
    start = rule.with_key(rule.init(parameters(), EXPECTED_SIZE), new_key(seed=3))
    batches = {name: (rows, losses) for name, rows, losses in adversarial_batches()}
    one = _played(rule, start, batches["normal"])
    for name in ("heavy", "zeros", "one row", "broken"):
        other = _played(rule, start, batches[name])
        for what in ("gradient", "next state", "next step"):
            assert _equal(one[what], other[what]), (
                f"{rule!r}: the {what} differs between two batches with the same release "
                f"('normal' and {name!r}): `after` uses more than was released"
            )


def check_gradient_carries_the_release(rule: Rule) -> None:
    """Other released values give another gradient: it carries their noise."""
    start = rule.with_key(rule.init(parameters(), EXPECTED_SIZE), new_key(seed=3))
    _, rows, losses = adversarial_batches()[0]
    one = _played(rule, start, (rows, losses))
    other = _played(rule, start, (rows, losses), seed=22)
    for name, leaf in one["gradient"].items():
        moved = leaf != other["gradient"][name]
        assert moved.all(), f"{rule!r}: entries of {name} do not change with what was released"


def _played(rule: Rule, start: State, batch: tuple[Tensor, Tensor], seed: int = 21) -> Any:
    """One step whose release is fixed, and the bounded parts of the next on a fixed batch."""
    state = copy.deepcopy(start)
    view = RowsView(rows_from(batch[0]), batch[1])
    parts = rule.bounded(rule.contributions(view, state), state)
    gradient, state = rule.after(_fixed_release(parts, seed), state)
    found = {"gradient": gradient.values["grad"], "next state": copy.deepcopy(state)}
    _, rows, losses = adversarial_batches()[0]
    following = rule.contributions(RowsView(rows_from(rows * 3), losses), state)
    parts = rule.bounded(following, state)
    found["next step"] = {name: [p.value, p.sensitivity, p.share] for name, p in parts.items()}
    return found


def _fixed_release(parts: dict[str, Bounded], seed: int) -> Released:
    """Noisy values that do not depend on the batch, in the shapes of ``parts``."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(leaf: Tensor) -> Tensor:
        return torch.randn(leaf.shape, generator=generator).to(leaf.dtype)

    values = {name: tree_map(drawn, part.value) for name, part in parts.items()}
    return Released(values, Gaussian(0.8).std(parts), 0)


def _equal(one: Any, other: Any) -> bool:
    """Bit by bit, through dicts and lists."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)

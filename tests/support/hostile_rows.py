"""Cases that try to move a bounded sum by more than its bound. A seed names a case.

A case has a model, a rule, an engine, n rows (or units) and one hostile row (or unit) that comes
last. `measured` computes what the rule hands to the door without the hostile row and with it, and
returns the distance in multiples of the stated sensitivity, for every part and every bound.

Losses are <out_i, e_i> with constants e_i that the rows bring, and trained weights are 0, 1 or -1,
so that the recorded factors are x_i and e_i exactly: whatever else moves a sum is winsor's own
arithmetic. Hostile content is drawn by family (`FAMILIES`), layers by kind (`KINDS`).

What the forward pass of a network does to equal rows at different places of a batch is left out:
no sum repairs it. A test of fixed slots would take `worlds` and put the row elsewhere.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from hostile_layers import BOUNDED_FORWARD, KINDS, ROWS, Kind, Model
from torch import Tensor, nn

from winsor.core.contract import Bounded, WinsorError
from winsor.gradients.engine import make_engine
from winsor.gradients.parameters import trainable_parameters
from winsor.gradients.rows import RowsView
from winsor.gradients.units import Units, units_view
from winsor.gradients.view import JoinedView, Need, View
from winsor.rules import NSGD, Flat, PerLayer, Value, all_examples
from winsor.rules.rule import Rule, Sums, no_rows
from winsor.training.loop import _added

RULES: tuple[Rule, ...] = (
    *all_examples(),
    Flat(1e-5),
    Flat(1e-3),
    NSGD(1.0, 1e-6),
    PerLayer(1e-4),
    Value(1e-3, form="forward"),
)
EXPECTED_SIZE = 8.0
MOST_SEEDS = 2000
"""Seeds of cases above 1 that a result keeps."""
COUNT = 1 << 14
"""Rows at which the arithmetic once changed."""

Fields = dict[str, Tensor]
"""Field of a row -> (rows, *shape). Names begin with x (input), e (output-gradient), t (tokens)."""


# -------------------------------------------------------------------------------------- families


@dataclass(frozen=True)
class Range:
    """Decimal exponents of a type: smallest denormal, largest number, and where squares leave."""

    low: float
    high: float
    digits: float

    @property
    def half(self) -> float:
        return self.low / 2


RANGES = {
    torch.float32: Range(-45, 38.5, 7),
    torch.float64: Range(-320, 308, 16),
}
Fill = Callable[[Kind, random.Random, torch.Generator, torch.dtype], Fields]


def plain(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """A row as any other, of length 0.01 to 1,000."""
    scale = 10 ** coin.uniform(-1, 1)
    return _filled(kind, coin, g, dtype, scale)


def zeros(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """A row without any weight."""
    return _filled(kind, coin, g, dtype, 0.0)


def magnitudes(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """Every factor, or every entry, anywhere between the smallest and the largest number."""
    span = RANGES[dtype]
    powers = {name: coin.uniform(span.low, span.high) for name in kind.fields}
    found = _filled(kind, coin, g, dtype)
    for name, values in _real(found):
        power = torch.full(values.shape, powers[name], dtype=torch.float64)
        if coin.random() < 0.3:
            power = (
                span.low + (span.high - span.low) * torch.rand(values.shape, generator=g).double()
            )
        found[name] = _scaled(values, power, dtype)
    return found


def balanced(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """Inputs and output-gradients of opposite magnitudes, whose products are ordinary."""
    span = RANGES[dtype]
    near = coin.choice([span.high, -span.half, coin.uniform(0, span.high)])
    far = coin.choice([0.0, 1.0, coin.uniform(0, 3), coin.uniform(0, 6)])
    power = (near - far) * coin.choice([-1, 1, 1])
    product = coin.choice([0.0, coin.uniform(-6, 3), coin.uniform(-1, 7)])
    found = _filled(kind, coin, g, dtype)
    even = coin.random() < 0.5
    for name, values in _real(found):
        own = power if name[0] == "x" else product - power
        own = min(max(own, span.low), span.high)
        values = values.sign() if even else values
        found[name] = _scaled(values, torch.full(values.shape, own, dtype=torch.float64), dtype)
    return found


def underflowing(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """One factor whose squares are zero in its own type, the other as long as its square allows."""
    span = RANGES[dtype]
    small = span.half - 0.1 - coin.choice([0, 0, coin.uniform(0, 3)])
    found = _filled(kind, coin, g, dtype)
    short = coin.choice("ex")
    for name, values in _real(found):
        large = (
            span.high / 2 - math.log10(max(1, values.numel())) / 2 - coin.choice([0.0, 0.05, 1.0])
        )
        power = torch.full(values.shape, small if name[0] == short else large, dtype=torch.float64)
        found[name] = _scaled(values.sign(), power, dtype)
    return found


def opposed(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """Places that cancel, exactly or but for an ordinary rest."""
    span = RANGES[dtype]
    found = _filled(kind, coin, g, dtype)
    length = coin.choice([coin.uniform(0, 2.5 * span.digits), span.digits, 7.0, 16.0])
    height = coin.choice([0.0, coin.uniform(-8, 8)])
    rest = coin.choice([0.0, 0.0, 1.0, 10 ** -coin.uniform(0, span.digits)])
    for name, values in _real(found):
        at = _places(kind, values)
        if name[0] == "x":
            at = at[:1].expand_as(at) if coin.random() < 0.8 else at
            at = at * 10 ** (length - height)
        else:
            half = at[: len(at) // 2]
            order = torch.randperm(2 * len(half), generator=g)
            at = torch.cat([half, -half])[order] if len(half) else at
            at = torch.cat([at, at.new_zeros(len(_places(kind, values)) - len(at), at.shape[1])])
            at = at * 10**height
            if rest and len(half):
                at[0] += rest * 10**height * torch.randn(at.shape[1], generator=g)
        found[name] = _back(kind, at, values)
    if "x2" in found:  # two calls of one layer cancel each other
        count = min(len(_places(kind, found["e"])), len(_places(kind, found["e2"])))
        _places(kind, found["x2"])[:count] = _places(kind, found["x"])[:count]
        _places(kind, found["e2"])[:count] = -_places(kind, found["e"])[:count]
    elif kind.tokens and "x" in found and "e2" in found:  # the embedding cancels the head
        scale = 10.0 ** coin.uniform(0, 3)
        found["x"] = found["e2"] / scale * (-1 if coin.random() < 0.9 else 1)
        hot = nn.functional.one_hot(found["t"], kind.tokens)
        found["e"] = (hot * scale).to(found["x"])
    return {name: value.to(dtype) if name[0] != "t" else value for name, value in found.items()}


def largest(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """The largest numbers in one factor or in both."""
    found = plain(kind, coin, g, dtype)
    which = coin.choice(["x", "e", "xe"])
    most = torch.finfo(dtype).max / coin.choice([1, 1, 2, 1e4])
    for name, values in _real(found):
        if name[0] in which:
            found[name] = values.sign() * most
    return found


def nonfinite(kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype) -> Fields:
    """An ordinary row with infinities or NaN in some entries."""
    found = plain(kind, coin, g, dtype)
    name = coin.choice([name for name, _ in _real(found)])
    hit = torch.rand(found[name].shape, generator=g) < coin.choice([0.01, 0.3, 1.0])
    hit.view(-1)[0] = True
    value = coin.choice([math.inf, -math.inf, math.nan])
    found[name] = found[name].masked_fill(hit, value)
    return found


FAMILIES: dict[str, Fill] = {
    one.__name__: one
    for one in (plain, zeros, magnitudes, balanced, underflowing, opposed, largest, nonfinite)
}
WEIGHTS = {"balanced": 5, "underflowing": 3, "opposed": 5, "magnitudes": 2}


def _filled(
    kind: Kind, coin: random.Random, g: torch.Generator, dtype: torch.dtype, scale: float = 1.0
) -> Fields:
    """One row: normal entries times a scale, and tokens, of which some repeat."""
    found: Fields = {}
    few = coin.choice([1, 2, kind.tokens or 1])
    for name, shape in kind.fields.items():
        if name[0] == "t":
            found[name] = torch.randint(0, max(1, min(few, kind.tokens)), (1, *shape), generator=g)
        else:
            normal = torch.randn(1, *shape, generator=g, dtype=torch.float64)
            found[name] = (normal * scale).to(dtype)
    return found


def _real(fields: Fields) -> list[tuple[str, Tensor]]:
    return [(name, values) for name, values in fields.items() if name[0] != "t"]


def _scaled(values: Tensor, power: Tensor, dtype: torch.dtype) -> Tensor:
    """``values`` times a power of ten, in two steps, so that the power itself cannot overflow."""
    half = torch.pow(10.0, power / 2)
    most = torch.finfo(dtype).max
    return (values.double() * half * half).nan_to_num(0.0).clamp(-most, most).to(dtype)


def _places(kind: Kind, values: Tensor) -> Tensor:
    """(places, width) of one row."""
    row = values[0]
    if row.dim() < 2:
        return row[None]
    return row.flatten(1).T if kind.channels_first else row.flatten(0, -2)


def _back(kind: Kind, places: Tensor, like: Tensor) -> Tensor:
    if like[0].dim() < 2:
        return places.reshape(like.shape)
    return (places.T if kind.channels_first else places).reshape(like.shape).clone()


# ----------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """What `measured` computes. Everything follows from the seed, except what a test replaces."""

    seed: int
    kinds: tuple[str, ...]
    rule: Rule
    engine: str
    count: int
    """Rows or units before the hostile one."""
    family: str
    others: str
    """Family of the other rows, which are alike; "various" if they differ."""
    unit: tuple[int, ...] = ()
    """Rows of the units, in turn; the last is the size of the hostile one. () protects rows."""
    physical: int = 0
    """Rows or units of a physical batch; 0 takes all at once."""
    dtype: torch.dtype = torch.float32
    warm: bool = False
    """Whether the engine has seen another batch before."""

    @property
    def labels(self) -> dict[str, str]:
        """What results are grouped by."""
        units = "rows" if not self.unit else "units" if len(set(self.unit)) == 1 else "ragged units"
        return {
            "rule": repr(self.rule),
            "engine": self.engine,
            "family": self.family,
            "units": units,
            "fragments": "several" if self.physical else "one",
            "count": str(self.count),
            "type": str(self.dtype)[6:],
        }


def case(seed: int) -> Case:
    """Draw a case."""
    coin = random.Random(seed)
    names, weights = list(FAMILIES), [WEIGHTS.get(name, 1) for name in FAMILIES]
    rule = coin.choice(RULES)
    engine = coin.choice(["ghost"] * 7 + ["func", "loop", "rows"])
    known = BOUNDED_FORWARD if rule.needs & Need.FORWARD else tuple(KINDS)
    if rule.needs & Need.FORWARD and engine != "rows":
        engine = "auto"
    kinds = tuple(coin.choices(known, k=coin.choice([1, 1, 2, 2, 3])) if engine != "rows" else ())
    if getattr(rule, "form", "") == "value":
        kinds = tuple(kind for kind in kinds if "linear" in kind)[:1] or (kinds and ("linear",))
    count = coin.choice([64] * 6 + [0, 1, 2, 3, 7, 16, 65, 128, 255, 256])
    if engine in ("ghost", "rows", "auto") and all(KINDS[kind].small for kind in kinds):
        count = coin.choice([count] * 12 + [1023, 1024, COUNT - 1, COUNT])
    if engine == "loop":
        count = min(count, coin.choice([1, 3, 8]))
    unit: tuple[int, ...] = ()
    if count < 1000 and not rule.needs & Need.FORWARD and coin.random() < 0.35:
        size = coin.choice([2, 2, 3, 4])
        unit = coin.choice([(size,), (size,), (1, 3, 2), (2, 1, 2)])
        count //= 2
    if "long Gram matrices" in kinds:
        count = min(count, 8)
    physical = coin.choice([0, 0, 0, 1, 5, 16, 64])
    return Case(
        seed,
        kinds,
        rule,
        engine,
        count,
        coin.choices(names, weights)[0],
        coin.choice(["plain"] * 6 + ["various", coin.choices(names, weights)[0]]),
        unit,
        physical if count < 1000 and count < 12 * physical else 0,
        torch.float64 if coin.random() < 0.2 else torch.float32,
        coin.random() < 0.3,
    )


def rows_of(one: Case) -> tuple[Fields, list[int]]:
    """Return all rows, with the hostile ones last, and the sizes of units."""
    coin, g = random.Random(one.seed + 1), torch.Generator().manual_seed(one.seed)
    sizes = [one.unit[i % len(one.unit)] for i in range(one.count)] if one.unit else []
    last = one.unit[-1] if one.unit else 1
    before = sum(sizes) if one.unit else one.count
    found: Fields = {}
    for number, name in enumerate(one.kinds or tuple(ROWS)):
        kind = KINDS[name] if one.kinds else Kind(nn.Identity, {"x": ROWS[name]})
        others = _others(one, kind, coin, g, before)
        hostile = _hostile(one, kind, coin, g, last)
        for field, rows in others.items():
            found[f"{field}.{number}"] = torch.cat([rows, hostile[field]])
    return found, [*sizes, last] if one.unit else []


def _others(one: Case, kind: Kind, coin: Any, g: torch.Generator, count: int) -> Fields:
    drawn = min(count, 16) if one.others == "various" else 1
    fill = FAMILIES[plain.__name__ if one.others == "various" else one.others]
    each = [fill(kind, coin, g, one.dtype) for _ in range(max(1, drawn))]
    index = torch.arange(count) % len(each)
    return {name: torch.cat([row[name] for row in each])[index] for name in kind.fields}


def _hostile(one: Case, kind: Kind, coin: Any, g: torch.Generator, count: int) -> Fields:
    """The hostile rows: one, or those of a unit, which may cancel each other."""
    rows = [FAMILIES[one.family](kind, coin, g, one.dtype) for _ in range(count)]
    if count > 1 and coin.random() < 0.7:
        rows[1] = dict(rows[0])
        sign = [name for name in kind.fields if name[0] == "e"] or list(kind.fields)
        rest = coin.choice([0.0, 0.0, 1e-3, 1.0])
        for name in sign:
            values = -rows[0][name]
            rows[1][name] = values + rest * torch.randn(values.shape, generator=g).to(values)
    return {name: torch.cat([row[name] for row in rows]) for name in kind.fields}


# ------------------------------------------------------------------------------------- measuring


def worlds(one: Case, fields: Fields, sizes: list[int]) -> list[dict[str, Bounded]]:
    """What goes to the door without the last row or unit, and with it."""
    total, last = len(next(iter(fields.values()))), sizes[-1] if sizes else 1
    without = {name: rows[: total - last] for name, rows in fields.items()}
    recorded: list[RowsView] = []
    after = _handed_over(one, fields, sizes, recorded)
    return [_handed_over(one, without, sizes[:-1], recorded), after]


def _recorded_once(view: View, known: RowsView | None) -> RowsView:
    """What the engine "loop" records of a row has other last bits among other rows, which is a
    condition of its guarantee: take what it recorded in the other world, unless the row is finite
    in one of the two only, which is no rounding."""
    assert isinstance(view, RowsView)
    if known is None:
        return view
    n = view.size
    rows = {}
    for name, now in view.raw.items():
        before = known.raw[name][:n]
        alike = _is_finite(now) == _is_finite(before)
        rows[name] = torch.where(alike.view(-1, *[1] * (now.dim() - 1)), before, now)
    return RowsView(rows, view.raw_losses)


def _is_finite(rows: Tensor) -> Tensor:
    """Tell which rows are finite, by any winsor: this file also judges checkouts of before."""
    flat = rows.detach().double().reshape(len(rows), rows[:1].numel())
    return flat.abs().le(2.0**250).all(1)


def _handed_over(
    one: Case, fields: Fields, sizes: list[int], recorded: list[RowsView]
) -> dict[str, Bounded]:
    model: nn.Module | None = None
    if one.kinds:
        model = Model(one.kinds, one.dtype)
        parameters = trainable_parameters(model)
    else:
        parameters = {name: torch.zeros(shape, dtype=one.dtype) for name, shape in ROWS.items()}
    rule = one.rule
    state = rule.init(dict(parameters), EXPECTED_SIZE)
    held: list[View] = []
    sums: Sums | None = None
    for view in _views(one, model, parameters, fields, sizes, recorded):
        if rule.couples_rows:
            held.append(view)
            continue
        with torch.no_grad():
            found = rule.contributions(view, state)
            sums = found if sums is None else _added(sums, found)
    with torch.no_grad():
        if sums is None:
            whole = JoinedView(held) if len(held) > 1 else held[0] if held else no_rows(parameters)
            sums = rule.contributions(whole, state)
        return rule.bounded(sums, state)


def _views(
    one: Case,
    model: nn.Module | None,
    parameters: Any,
    fields: Fields,
    sizes: list[int],
    recorded: list[RowsView],
) -> Iterator[View]:
    """Yield the view of each physical batch. The first world's are kept in ``recorded``."""
    known = list(recorded)
    rows = len(next(iter(fields.values())))
    each = sizes or [1] * rows
    step = one.physical or max(1, len(each))
    engine = None
    if model is not None:
        engine = make_engine(model, parameters, one.engine, one.rule.needs)
        engine.attach()
        engine.recording(True)
        if one.warm:
            _warmed(one, engine, model)
    try:
        start = 0
        for first in range(0, len(each), step):
            stop = start + sum(each[first : first + step])
            part = {name: values[start:stop] for name, values in fields.items()}
            view = _view(engine, model, part)
            if one.engine == "loop":
                view = _recorded_once(view, known[first // step] if known else None)
                recorded.append(view)
            yield units_view(view, Units(each[first : first + step])) if sizes else view
            start = stop
    finally:
        if engine is not None:
            engine.recording(False)
            engine.detach()


def _view(engine: Any, model: nn.Module | None, fields: Fields) -> View:
    if model is None:
        return RowsView(dict(zip(ROWS, fields.values(), strict=True)))
    outs = model(*(values for name, values in fields.items() if name[0] in "xt"))
    slopes = [values for name, values in fields.items() if name[0] == "e"]
    losses = [(out * e).flatten(1).sum(1) for out, e in zip(outs, slopes, strict=True)]
    return engine.view(torch.stack(losses).sum(0) if len(losses) > 1 else losses[0])


def _warmed(one: Case, engine: Any, model: nn.Module) -> None:
    ordinary = replace(one, family="plain", others="various", count=4, unit=())
    with torch.no_grad():
        fields = rows_of(ordinary)[0]
    with torch.enable_grad():
        view = _view(engine, model, fields)
    state = one.rule.init(dict(trainable_parameters(model)), EXPECTED_SIZE)
    with torch.no_grad():
        one.rule.contributions(view, state)


def flat(value: Any) -> Tensor:
    leaves = value.values() if isinstance(value, dict) else [value]
    return torch.cat([torch.as_tensor(leaf).detach().reshape(-1).double() for leaf in leaves])


def measured(one: Case, rows: tuple[Fields, list[int]] | None = None) -> dict[str, float]:
    """Return "part, bound" -> the move in multiples of what is stated; infinite if not finite.

    ``rows`` are fields and sizes of units to take in place of the case's own.
    """
    before, after = worlds(one, *(rows_of(one) if rows is None else rows))
    found: dict[str, float] = {}
    for name, part in after.items():
        moved = flat(part.value) - flat(before[name].value)
        bounds = {"l2": (moved.norm(), part.sensitivity.add_remove)}
        if part.sensitivity.l1 is not None:
            bounds["l1"] = (moved.abs().sum(), part.sensitivity.l1)
        if part.coordinate_bound is not None:
            bounds["coordinate"] = (moved.abs().max(), part.coordinate_bound)
        for bound, (length, stated) in bounds.items():
            share = float(length) / stated
            found[f"{name}, {bound}"] = share if math.isfinite(share) else math.inf
    return found


@dataclass(frozen=True)
class Outcome:
    """The largest move of a case, or the error that is in its place."""

    move: float
    what: str
    """The part and its bound, or the error that a row caused."""
    refused: bool = False
    """True if rows have no part in it: the rule does not take the model."""


def _refused(one: Case, error: Exception) -> bool:
    """Return whether winsor refused on purpose, and does so for other ordinary rows, too."""
    count = one.count + 7
    try:
        measured(replace(one, family="plain", others="plain", count=count, physical=0))
    except Exception as again:
        return isinstance(error, WinsorError) and type(again) is type(error)
    return False


def outcome(one: Case, rows: tuple[Fields, list[int]] | None = None) -> Outcome:
    """Measure a case. An error counts as a move, but for a refusal that all rows meet."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = measured(one, rows)
    except Exception as error:
        refused = rows is None and _refused(one, error)
        return Outcome(0.0 if refused else math.inf, _told(error), refused)
    what = max(found, key=lambda name: found[name])
    return Outcome(found[what], what)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def nothing(seed: int) -> dict[str, Any]:
    """What is known of the cases from ``seed`` on before the first of them."""
    return {
        "seed": seed, "cases": 0, "refused": 0, "above": 0, "largest": 0.0, "seeds": [], "by": {}
    }  # fmt: skip


def noted(known: dict[str, Any], one: Case, found: Outcome) -> None:
    """Add an outcome to what is known of many: in all, and by every family a case belongs to."""
    known["cases"] += 1
    known["refused"] += found.refused
    if found.refused:
        return
    known["above"] += found.move > 1
    if found.move > 1 and len(known["seeds"]) < MOST_SEEDS:
        known["seeds"].append(one.seed)
    known["largest"] = max(known["largest"], found.move)
    labels = [*one.labels.items(), *(("kind", kind) for kind in set(one.kinds))]
    for label, value in labels:
        family = known["by"].setdefault(label, {}).setdefault(value, [0, 0, 0.0, 0, ""])
        family[0] += 1
        family[1] += found.move > 1
        if found.move > family[2]:
            family[2:] = [found.move, one.seed, found.what]

"""The cases that issue 36 was opened with, as far as they are about networks.

A row of `TABLE` has a name, what the code of commit 6f0a506 moved, and a function that measures:
in multiples of the stated bound, infinite where a row ends the run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from hostile_layers import KINDS, Kind, convolutions, linear_maps, one_layer
from hostile_rows import COUNT, Case, Fields, outcome
from torch import Tensor, nn

from winsor.rules import L1, NSGD, Flat, PerLayer, Value
from winsor.rules.rule import Rule


def _moved(
    kinds: dict[str, Kind],
    fields: Fields,
    rule: Rule,
    sizes: list[int] | None = None,
    engine: str = "ghost",
) -> float:
    """Measure rows that are given, the hostile one (or unit) last."""
    KINDS.update(kinds)
    one = Case(0, tuple(kinds), rule, engine, 0, "plain", "plain")
    return outcome(one, (fields, sizes or [])).move


def alike_rows() -> float:
    """16,384 alike rows and one more, of a linear classifier."""
    found = []
    for seed in (16, 2, 34, 35):
        g = torch.Generator().manual_seed(seed)
        x, e = (torch.rand(1, 1, generator=g) + 0.5 for _ in range(2))
        fields = {"x.0": x.repeat(COUNT + 1, 1), "e.0": e.repeat(COUNT + 1, 1)}
        found.append(_moved({"one number": linear_maps(1, 1)}, fields, Flat(1.0)))
    return max(found)


def underflow(rule: Rule) -> float:
    """A factor whose squares are zero in float32, beside one as long as its square allows."""
    places, width = 240, 1600
    x, e = torch.ones(2, places, width), torch.full((2, places, width), 0.01)
    x[1], e[1] = 1.7e19 / width**0.5, 2.6e-23
    rest, slope = torch.zeros(2, 5), torch.zeros(2, 3)
    rest[1, 0], slope[1, 0] = 1.6e-6, 1.0  # long enough that nothing looks near its limits
    kinds = {
        "long": linear_maps(width, width, places, bias=False),
        "rest": linear_maps(5, 3, bias=False),
    }
    return _moved(kinds, {"x.0": x, "e.0": e, "x.1": rest, "e.1": slope}, rule)


def underflow_of_value() -> float:
    """The same for a bound from the forward pass, of a convolution."""
    shape = (2, 64, 8, 8)
    x, e = torch.ones(shape), torch.full(shape, 0.01)
    x[1], e[1] = 1.8e19 / 64, 2.6e-23
    layer = convolutions(lambda: nn.Conv2d(64, 64, 3, padding=1, bias=False), shape[1:], shape[1:])
    rule = Value(1 / 300, form="forward")
    return _moved({"convolution": layer}, {"x.0": x, "e.0": e}, rule, engine="auto")


def person() -> float:
    """A person with two rows at 1e16 and -1e16, after 154 alike persons."""
    persons, width = 154, 64
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, width, generator=g).repeat(2 * persons + 2, 1)
    e = torch.full((2 * persons + 2, width), width**-0.5)
    e[-2], e[-1] = 1e16, -1e16
    kinds = {"norm": one_layer(lambda: nn.LayerNorm(width), (width,), (width,))}
    return _moved(kinds, {"x.0": x, "e.0": e}, Flat(1.0), [2] * (persons + 1))


def lengths_in_l1() -> float:
    """Places that cancel, after 63 alike rows, under a bound in L1."""
    rows, places, width = 64, 8, 40
    x, e = torch.ones(rows, places, width), torch.full((rows, places, width), 1e-3)
    x[-1], e[-1] = 1e7, 0.0
    e[-1, 0], e[-1, 1] = 1e7, -1e7
    kinds = {"places": linear_maps(width, width, places, bias=False)}
    return _moved(kinds, {"x.0": x, "e.0": e}, L1(1.0))


def tied() -> float:
    """Tokens that cancel each other, and an output layer of the same weight that cancels them."""
    found, tokens = [], 64
    kind = replace(KINDS["tied"], fields={"x": (64, 5), "t": (64,), "e": (64, 7), "e2": (64, 5)})
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        long = torch.randn(tokens // 2 - 1, 5, generator=g) * 1e4
        rest, short = torch.randn(2, 5, generator=g)
        rest *= float(long.norm()) * 2**-5.5 / rest.norm()
        short *= float(rest.norm()) * 2**-5.5 / short.norm()
        fields: dict[str, Tensor] = {
            "x.0": torch.zeros(9, tokens, 5), "t.0": torch.full((9, tokens), 3),
            "e.0": torch.zeros(9, tokens, 7), "e2.0": torch.ones(9, tokens, 5),
        }  # fmt: skip
        fields["e2.0"][-1] = torch.cat([long, -long, torch.stack([rest, 0 * rest])])
        fields["x.0"][-1, 0], fields["e.0"][-1, 0, 3] = short - rest, 1.0
        found.append(_moved({"tied, long": kind}, fields, Flat(1.0)))
    return max(found)


def denormal() -> float:
    """A weight times an output-gradient that is denormal before it meets an input of 1e38."""
    kinds = {"wide": linear_maps(104, 104, bias=False)}
    fields = {"x.0": torch.full((1, 104), 1e38), "e.0": torch.full((1, 104), 1e-30)}
    return _moved(kinds, fields, Flat(1e-5))


def overflow() -> float:
    """A weight times an output-gradient that overflows: a finite row ends the run."""
    kinds = {"small": linear_maps(4, 3, bias=False)}
    return _moved(kinds, {"x.0": torch.full((1, 4), 1e-44), "e.0": torch.full((1, 3), 1e30)},
                  NSGD(2.0, 0.0))  # fmt: skip


def nonfinite(engine: str) -> float:
    """A row that is not finite is the last of the first batch."""
    fields = {"x.0": torch.ones(9, 5), "e.0": torch.ones(9, 3)}
    fields["x.0"][-1] = torch.nan
    return _moved({"linear": KINDS["linear"]}, fields, Flat(1.0), engine=engine)


TABLE: tuple[tuple[str, str, Callable[[], float]], ...] = (
    ("16,384 alike rows and one more, Flat", "3.4", alike_rows),
    ("squares underflow, Flat(1.0)", "4.2", lambda: underflow(Flat(1.0))),
    ("squares underflow, Flat(0.1)", "42", lambda: underflow(Flat(0.1))),
    ("squares underflow, NSGD(2.0, 0.0)", "2.6e6", lambda: underflow(NSGD(2.0, 0.0))),
    (
        "squares underflow, PerLayer(2.0), joint",
        "3.0",
        lambda: underflow(PerLayer(2.0, joint=True)),
    ),
    ("squares underflow, Value", "22.8", underflow_of_value),
    ("two rows of a person at 1e16 and -1e16", "154", person),
    ("L1 of places that cancel", "12.4", lengths_in_l1),
    ("tied embedding and output layer", "1 + 7e-4", tied),
    ("w e denormal, x = 1e38, Flat(1e-5)", "1.46", denormal),
    ("w e overflows, NSGD(2.0, 0.0)", "ends the run", overflow),
    ("a row that is not finite, ghost", "", lambda: nonfinite("ghost")),
    ("a row that is not finite, func", "", lambda: nonfinite("func")),
)

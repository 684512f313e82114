"""Neighbouring datasets that hurt: one record chosen to move a release as far as it can.

Each pair below is the worst case of some family of rules; run on all rules, they are what an
adversary would try first. Which pair hurts a given rule most is computed, not measured: the rule is
deterministic, so its shift in noise units is known before any noise is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from winsor.audit.records import LINE, MODEL, GradientRecords, Shapes, dimension
from winsor.audit.worlds import AuditSetting, RuleExperiment
from winsor.core.contract import Neighbouring
from winsor.rules.rule import Rule

NOMINAL = 10
"""Records in the adversary's datasets (the one in question not counted)."""
DRAWS = 24
"""Draws tried for a rule with coins of its own."""
TIE = 1e-4
"""Of pairs whose shifts differ by no more than this share, the simplest is taken."""
SCALES = (1e6, 1e2, 3.0, 1.0, 0.3, 0.02)
"""Lengths of gradients, from far above any threshold to far below."""


def directions(shapes: Shapes) -> dict[str, Tensor]:
    """One coordinate alone, all coordinates alike, and one that is neither."""
    d = dimension(shapes)
    one_hot = torch.zeros(d)
    one_hot[0] = 1.0
    generator = torch.Generator().manual_seed(7)
    mixed = torch.randn(d, generator=generator)
    return {
        "one-hot": one_hot,
        "spread": torch.full((d,), d**-0.5),
        "mixed": mixed / mixed.norm(),
    }


def pairs(
    relation: Neighbouring, shapes: Shapes = MODEL, few: bool = False
) -> Iterator[GradientRecords]:
    """Every pair of datasets tried, under one relation; or a ``few``, long and in one direction."""
    for label, u in directions(shapes).items():
        if few and label != "mixed":
            continue
        for length in SCALES[1:3] if few else SCALES:
            g = length * u
            for name, common, z, instead in _stories(g):
                other = z.new_zeros((0, len(u)))
                if relation is Neighbouring.REPLACE_ONE:
                    other = instead[None]
                title = f"{name}, {label}, {length:g}"
                yield GradientRecords(title, common, other, z[None], shapes)


def _stories(g: Tensor) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """(name, common records, the record in question, what it replaces) for a gradient g."""
    nothing = g.new_zeros((0, len(g)))
    others = g.expand(NOMINAL, -1)
    yield "canary, other batch empty", nothing, g, -g
    yield "canary among silent", g.new_zeros((NOMINAL, len(g))), g, -g
    # The newcomer outranks one of the others, which falls out of the tail. What it replaces is
    # half as long: a count of long records notices, too.
    yield "rank bump", -others, 2 * g, -g
    yield "opposite to the others", -others, g, -g
    # Alone it outweighs all others together, so a clipped mean changes its sign.
    yield "mean flip", -others, 100 * NOMINAL * g, -g
    # Whoever is displaced by the newcomer flips the next microbatch in turn.
    chain = torch.stack([-100 * g, 10 * g, -g])
    yield "chain of flips", chain, 1000 * g, -1000 * g
    # Only the size of the batch changes.
    yield "silent record", others, 0 * g, g


def worst(rule: Rule, setting: AuditSetting, shapes: Shapes = MODEL) -> RuleExperiment:
    """The pair with the largest shift, in units of the declared noise, on the full batch.

    A rule that draws coins is given to an adversary who knows them: its sensitivity is stated for
    the worst draw, so it must hold for the worst of a few. (A rule whose *event* rests on its coins
    being secret is not bounded that way; see `transcripts.RandomRuleExperiment`.)
    """
    experiments = [
        RuleExperiment(rule, pair, setting, draw=draw)
        for pair in pairs(setting.relation, shapes, few=rule.randomised)
        for draw in range(DRAWS if rule.randomised else 1)
    ]
    shifts = [experiment.shift() for experiment in experiments]
    enough = (1 - TIE) * max(shifts)
    return next(e for e, shift in zip(experiments, shifts, strict=True) if shift >= enough)


def canary(relation: Neighbouring, silent: int = 0) -> GradientRecords:
    """One huge coordinate, among ``silent`` zero records: the worst case of per-sample clipping."""
    z = torch.tensor([[1e6]])
    other = -z if relation is Neighbouring.REPLACE_ONE else z.new_zeros((0, 1))
    return GradientRecords("Dirac canary", z.new_zeros((silent, 1)), other, z, LINE)

"""Mean incomes of groups, privately: heavy tails, no bound to guess, one budget for all.

    python examples/gallery/incomes.py [--full] [--out DIR]

Incomes are log-normal with a Pareto tail: one row in a hundred is many times the median. The whole
of it, all means and all intervals, spends epsilon 1. The full form has 200,000 rows, the short one
8,000.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from options import asked_for
from page import Ranked, Shown

from winsor.tables import winsorised_mean

REGIONS = {"north": 1.0, "east": 0.85, "south": 0.7, "west": 1.15}
CHANGES = (
    "Replace incomes() by your column of numbers and your column of groups.",
    "The names of the groups are taken as public: leave out a group whose existence is a secret.",
    "A person with several rows: sum them first, or use unit= without groups.",
)


def incomes(n: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Synthetic rows, so that the example can show the truth beside its estimate."""
    draw = np.random.default_rng(seed)
    region = draw.choice(list(REGIONS), n)
    level = np.array([REGIONS[name] for name in region])
    tail = np.where(draw.uniform(size=n) < 0.01, 1 + draw.pareto(2.2, n) * 4, 1.0)
    return 30_000 * level * draw.lognormal(0, 0.6, n) * tail, region


def main(arguments: list[str] | None = None) -> None:
    options = asked_for(__doc__, "incomes", arguments)
    amounts, region = incomes(200_000 if options.full else 8_000)
    found = winsorised_mean(amounts, by=region, epsilon=1.0, delta=1e-6)
    assert found.groups is not None
    results = [("everyone", f"{found.estimate:,.0f} ({found.low:,.0f} to {found.high:,.0f})")]
    for name, group in sorted(found.groups.items(), key=lambda item: -item[1].estimate):
        interval = f"{group.low:,.0f} to {group.high:,.0f}"
        results.append(
            (str(name), f"{group.estimate:,.0f} ({interval}), about {group.size:,.0f} rows")
        )
    chart = Ranked(
        title="Mean income by region, with 95 % intervals",
        axis="income",
        values=[
            (str(name), group.estimate, (group.low, group.high))
            for name, group in sorted(found.groups.items(), key=lambda item: -item[1].estimate)
        ],
        note="Released values. The intervals contain sampling error, noise and what the cuts lost.",
    )
    promise = f"All means and intervals together: {found.guarantee}."
    shown = Shown("Incomes by region", promise, results, CHANGES, [], found.guarantee, [chart])
    shown.write(options.out)


if __name__ == "__main__":
    main()

"""`winsor reproduce modelmix`: section 4.3, table 1, figure 2 (c, d) and section 5.3 as lines.

The work is done by `section43.py`, `table1.py`, `figure2.py` and `embedding.py`; tables 2 and 3
are in `deep.py`, figure 3 in `curves.py`, figure 2 (a, b) in `unnoised.py`, transfer learning in
`transfer.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from winsor_reproductions.modelmix import embedding, figure2
from winsor_reproductions.modelmix.claimed import claimed_noise
from winsor_reproductions.modelmix.section43 import Section43
from winsor_reproductions.modelmix.section43 import section_43 as section_43_rows
from winsor_reproductions.modelmix.table1 import (
    CACHE,
    PRINTED,
    Table1,
    at_the_rate_of,
    full_size,
    recipes,
    scattering_problem,
    together,
)
from winsor_reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_reproductions.training_runs import Problem, TrainingRecipe, over_seeds
from winsor_reproductions.verdicts import Comparison, sentence

from winsor.accounting import account
from winsor.accounting.events import History
from winsor.accounting.widened.gaussian import MixedGaussianDpEvent
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.papers.modelmix.claim import Parts
from winsor.papers.modelmix.statistics import statistics_claim

# ------------------------------------------------------------------------------------- section 4.3


def section_43(request: Request) -> Reproduced:
    """Epsilons: a calculation, the same quick or full."""
    return section_43_of(Section43())


def section_43_of(setting: Section43) -> Reproduced:
    lines, gaussian = [], 0
    for row in section_43_rows(setting):
        gaussian += row.as_gaussian < row.certified
        lines.append(
            Line(
                {"tau/eta": f"{row.tau_over_eta:g}", "p": str(row.p)},
                printed=None if row.printed is None else f"{row.printed:g}",
                published=Measured.of([row.published.published_epsilon]),
                certified=Measured.of([row.certified]),
                extra={"same variance, all Gaussian": f"{row.as_gaussian:.3g}"},
            )
        )
    return Reproduced(
        "Section 4.3 of paper 5 (amplification by mixing)",
        f"epsilon at delta {setting.delta:g}",
        tuple(lines),
        section_43_verdict(lines, gaussian),
        asdict(setting),
        (
            "Published is the paper's formula, evaluated by us; certified holds for every way a "
            "gradient can be spread over coordinates. Both are numbers, not runs.",
        ),
    )


def section_43_verdict(lines: list[Line], gaussian: int) -> str:
    """How far the certified epsilon is from the printed one, and whether mixing is worth it."""
    ratios = [
        line.certified.mean / float(line.printed)
        for line in lines
        if line.certified is not None and line.printed is not None
    ]
    word = "Holds" if max(ratios) < 1.1 else "Does not hold"
    return (
        f"{word}: certified epsilons are {min(ratios):.2f} to {max(ratios):.2f} times the printed "
        f"ones; but the same variance as plain Gaussian noise has a smaller epsilon in {gaussian} "
        f"of {len(lines)} cells."
    )


# ----------------------------------------------------------------------------------------- table 1

QUICK_TABLE_1 = Table1(rows=5000, test_rows=2000, batch_size=683, steps=60)


def table_1(request: Request) -> Reproduced:
    """The small CNN on scattering features of Fashion-MNIST."""
    setting = QUICK_TABLE_1 if request.quick else full_size("fashion-mnist")
    return _table_1(request, setting)


def table_1_cifar(request: Request) -> Reproduced:
    """The other half of the table, with features standardised by private statistics."""
    setting = full_size("cifar10")
    if request.quick:
        setting = replace(QUICK_TABLE_1, batch_size=819, steps=30, epsilons=(1.0,), data="cifar10")
    return _table_1(request, replace(setting, statistics="private"))


def _table_1(request: Request, setting: Table1) -> Reproduced:
    setting = replace(setting, seeds=tuple(request.seeds_or(3, 5)))
    setting = at_the_rate_of(setting, len(setting.half.load(request.folder())[0][1]))
    request.say("scattering features")
    problem, history = scattering_problem(request.folder(), CACHE, setting)
    return table_1_of(problem, setting, request, history)


def table_1_of(
    problem: Problem, setting: Table1, request: Request, spent: History = ()
) -> Reproduced:
    """The lines; ``spent`` is what the statistics of the features have cost."""
    lines, half = [], setting.half
    for epsilon in setting.epsilons:
        for method, recipe in recipes(problem, setting, epsilon).items():
            request.say(f"epsilon {epsilon:g}, {method}")
            lines.append(_table_1_line(problem, setting, epsilon, (method, recipe), spent))
    return Reproduced(
        f"Table 1 of paper 5 ({half.title}, CNN on scattering features)",
        "test accuracy in per cent (chance: 10)",
        tuple(lines),
        table_1_verdict(lines, half.printed, len(problem.train[1]) == half.rows),
        asdict(setting),
        (
            f"{len(problem.train[1]):,} rows, {problem.steps} steps of {problem.batch_size}; the "
            f"paper has {half.rows:,} rows, {half.steps} steps of 8192, at the same rate. In "
            "a smaller batch every noise is larger against the signal, so compare lines with each "
            "other before comparing them with the paper.",
            '"mixing, narrow" is not in the paper: it mixes over twice the deviation of the '
            "Gaussian noise instead of a hundred clipping bounds.",
            "Published noise is the paper's formula at p = 1.",
            _statistics_note(spent, problem.delta),
        ),
    )


def _statistics_note(spent: History, delta: float) -> str:
    if not spent:
        return "Features are normalised per image: nothing is spent on their statistics."
    return (
        f"Features are standardised by channel statistics that were released with certified "
        f"epsilon {account(spent, delta).epsilon:.3f} "
        f"(published: {statistics_claim(delta=delta).published_epsilon:.3f}); the epsilons of the "
        "table are those of the training alone, as in the paper."
    )


def _table_1_line(
    problem: Problem,
    setting: Table1,
    epsilon: float,
    named: tuple[str, TrainingRecipe],
    spent: History,
) -> Line:
    method, recipe = named
    figures = setting.printed(epsilon)
    outcomes = over_seeds(problem, recipe, setting.seeds)
    line = Line(
        {"nominal": f"{epsilon:g}", "method": method},
        printed=f"{figures[method]:g}" if method in figures else None,
        certified=Measured.of([outcome.accuracy for outcome in outcomes]),
        certified_epsilon=max(outcome.epsilon for outcome in outcomes),
        extra={"noise multiplier": f"{outcomes[0].noise_multiplier:.3g}"},
    )
    if spent:
        whole = together(outcomes[0].history, spent, problem.delta)
        line = replace(line, extra={**line.extra, "with the statistics": f"{whole:.3f}"})
    mix = recipe.mechanism
    if mix is None:
        return line
    noise = claimed_noise(
        lambda value: mixed_parts(problem, mix, value, setting.p), epsilon, problem.delta
    )
    claimed = over_seeds(
        problem, replace(recipe, epsilon=None, noise_multiplier=noise), setting.seeds
    )
    return replace(
        line,
        published=Measured.of([outcome.accuracy for outcome in claimed]),
        published_certifies=max(outcome.epsilon for outcome in claimed),
    )


def mixed_parts(problem: Problem, mix: ModelMix, noise: float, p: int) -> Parts:
    """The steps of a run with clipping bound 1 as events, one part per width of the schedule."""
    rate = problem.batch_size / len(problem.train[1])
    ends = [*(start for start, _ in mix.schedule[1:]), problem.steps]
    return [
        (MixedGaussianDpEvent(rate, noise, width * problem.batch_size, p), end - start)
        for (start, width), end in zip(mix.schedule, ends, strict=True)
    ]


def table_1_verdict(
    lines: list[Line],
    figures: Mapping[float, tuple[float, float]] = PRINTED,
    own_setting: bool = False,
) -> str:
    """Mixing as printed, and narrow, against DP-SGD at each epsilon."""
    table: dict[str, dict[str, Measured]] = {}
    for line in lines:
        assert line.certified is not None
        table.setdefault(line.label["nominal"], {})[line.label["method"]] = line.certified
    wide, narrow = [], []
    for nominal, row in table.items():
        plain, mixing = figures[float(nominal)]
        rival = row["DP-SGD"]
        wide.append(Comparison(nominal, row["mixing"], rival, mixing - plain, own_setting))
        narrow.append(Comparison(nominal, row["mixing, narrow"], rival))
    return (
        f"Mixing as printed ahead of DP-SGD at equal certified epsilon: "
        f"{sentence(wide, 'epsilons', ' points')}. Narrow mixing, which is ours: "
        f"{sentence(narrow, 'epsilons', ' points')}."
    )


# ---------------------------------------------------------------------------------------- figure 2


def figure_2(request: Request) -> Reproduced:
    """Steps that are too large for plain DP-SGD, at the same noise."""
    setting = figure2.Figure2(seeds=tuple(request.seeds_or(3, 10)))
    problems = [figure2.synthetic_problem()]
    if not request.quick:
        problems.append(embedding.fashion_problem(request.folder())[0])
    lines = []
    for problem in problems:
        request.say(problem.name)
        for row in figure2.figure_2(problem, setting):
            lines.append(
                Line(
                    {"data": problem.name, "line": row.line, "step": f"{row.lr:.3g}"},
                    certified=row.losses,
                    certified_epsilon=row.epsilon,
                    extra={"accuracy": f"{row.accuracy:.1f}"},
                )
            )
    return Reproduced(
        "Figure 2 (c, d) of paper 5 (larger steps with mixing)",
        "test loss",
        tuple(lines),
        figure_2_verdict(lines),
        asdict(setting),
        (
            "A linear model instead of ResNet-20; all lines share one noise. The paper gives "
            "curves only. The line at 2/3 of the step is ours: mixing is momentum of -1/2.",
        ),
    )


def figure_2_verdict(lines: list[Line]) -> str:
    """Mixing against the plain large step, and against a shorter plain step."""
    table: dict[str, dict[str, Measured]] = {}
    for line in lines:
        assert line.certified is not None
        table.setdefault(line.label["data"], {})[line.label["line"]] = line.certified
    rivals = ("plain, large step", "plain, 2/3 of the large step", "plain, small step")
    parts = []
    for rival in rivals:
        found = [
            Comparison(name, row["mixed, large step"], row[rival], smaller_is_better=True)
            for name, row in table.items()
        ]
        parts.append(f"{rival}: {sentence(found, 'problems')}")
    return f"Mixing at a large step has a smaller loss than {'. Than '.join(parts)}."


# ------------------------------------------------------------------------------------- section 5.3

EMBEDDING_PRINTED = {"embedding": "73.2 at epsilon 8", "mixed": "74.2 at epsilon 2.9"}


def section_53(request: Request) -> Reproduced:
    """Mixing on top of a public gradient embedding."""
    setting = embedding.EmbeddingComparison(seeds=tuple(request.seeds_or(3, 10)))
    problem, public = (
        embedding.synthetic_problem() if request.quick
        else embedding.fashion_problem(request.folder())
    )  # fmt: skip
    lines = [
        Line(
            {"data": problem.name, "method": row.method},
            printed=EMBEDDING_PRINTED.get(row.method),
            certified=row.accuracies,
            certified_epsilon=row.certified_epsilon,
            extra={"noise multiplier": f"{row.noise_multiplier:.3g}"},
        )
        for row in embedding.compare(problem, public, setting)
    ]
    return Reproduced(
        "Section 5.3 of paper 5 (mixing on top of a public gradient embedding)",
        "test accuracy in per cent",
        tuple(lines),
        section_53_verdict(lines),
        asdict(setting),
        ("A linear model instead of ResNet-20 with ImageNet as public data; all lines at the same "
         "certified epsilon.",
         "The constants of each line are fixed, not tuned: mixing has half the step of the "
         "others."),
    )  # fmt: skip


def section_53_verdict(lines: list[Line]) -> str:
    """Does mixing add to the embedding?"""
    found = {line.label["method"]: line.certified for line in lines}
    flat, plain, mixed = found["flat"], found["embedding"], found["mixed"]
    assert flat is not None and plain is not None and mixed is not None
    against = {"the embedding alone": plain, "flat clipping": flat}
    parts = [
        f"{name}: {sentence([Comparison(name, mixed, rival)], 'comparison', ' points')}"
        for name, rival in against.items()
    ]
    told = "; of ".join(parts)
    return f"Mixing on top of the embedding, at the same certified epsilon, ahead of {told}."

"""`winsor reproduce modelmix`: section 4.3, table 1, figure 2 (c, d) and section 5.3 as lines.

The work is done by `section43.py`, `table1.py`, `figure2.py` and `embedding.py`; tables 2 and 3
are in `deep.py`, figure 3 in `curves.py`, figure 2 (a, b) in `unnoised.py`, transfer learning in
`transfer.py`.
"""

from __future__ import annotations

from dataclasses import asdict

from winsor_papers.reproductions.modelmix import embedding, figure2
from winsor_papers.reproductions.modelmix.section43 import Section43
from winsor_papers.reproductions.modelmix.section43 import section_43 as section_43_rows
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.verdicts import Comparison, sentence

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

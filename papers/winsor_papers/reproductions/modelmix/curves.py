"""Figure 3 of ModelMix as lines: epsilon over the steps of a run, at both sampling rates."""

from __future__ import annotations

from dataclasses import asdict

from winsor_papers.reproductions.modelmix.section43 import AT_RATE_4, Figure3Point, Section43
from winsor_papers.reproductions.modelmix.section43 import figure_3 as points_of
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request


def figure_3(request: Request) -> Reproduced:
    """A calculation; quick leaves out most points of the curves."""
    points = 2 if request.quick else 10
    return figure_3_of((Section43(), AT_RATE_4), points)


def figure_3_of(settings: tuple[Section43, ...], points: int) -> Reproduced:
    found = [point for setting in settings for point in points_of(setting, points)]
    return Reproduced(
        "Figure 3 of paper 5 (amplification over the run)",
        f"epsilon at delta {settings[0].delta:g}",
        tuple(_line(point) for point in found),
        figure_3_verdict(found),
        {"panels": [asdict(setting) for setting in settings], "points": points},
        (
            "Each panel has the noise at which DP-SGD has epsilon 200 after the last step, by the "
            "paper's own account. A record's share of the average is c over the expected batch, "
            "1000 at q = 0.02 and 2000 at q = 0.04. The paper prints numbers for q = 0.02 at the "
            "last step only: they are those of section 4.3.",
        ),
    )


def _line(point: Figure3Point) -> Line:
    mixed = point.p > 0
    return Line(
        {
            "q": f"{point.sampling_probability:g}",
            "tau/eta": f"{point.tau_over_eta:g}" if mixed else "no mixing",
            "p": str(point.p) if mixed else "",
            "steps": str(point.steps),
        },
        published=Measured.of([point.published.published_epsilon]),
        certified=Measured.of([point.certified]),
    )


def figure_3_verdict(points: list[Figure3Point]) -> str:
    """By how much mixing lowers epsilon at the end, and whether the certificate keeps up."""
    last = {
        (point.sampling_probability, point.tau_over_eta, point.p): point.certified
        for point in points
    }  # points come in the order of their steps
    gains = [
        last[q, 0.0, 0] / epsilon for (q, width, p), epsilon in last.items() if p and width > 0
    ]
    ratios = [point.certified / point.published.published_epsilon for point in points if point.p]
    word = "Holds" if min(gains) > 1 and max(ratios) < 1.1 else "Holds in part"
    return (
        f"{word}: at the same Gaussian noise mixing divides the certified epsilon of DP-SGD by "
        f"{min(gains):.1f} to {max(gains):.1f}; certified epsilons are {min(ratios):.2f} to "
        f"{max(ratios):.2f} times the published ones. The noise that mixing adds is not counted "
        "here: section 4.3 compares at equal variance."
    )

"""Paper 1, Table 2: DC-DPSGD beside DP-SGD, Auto-S, DP-PSAC and training without privacy.

The claim: at epsilon 8 DC-DPSGD is ahead of all three baselines on every data set, and more so on
long-tailed ones; on CIFAR-10 also at epsilon 4. E2E generation is a table of its own (`e2e.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from winsor_papers.reproductions.dc_dpsgd import tasks as dc_tasks
from winsor_papers.reproductions.dc_dpsgd.methods import (
    DC,
    DC_CODE,
    DC_COIN,
    DC_LOSS,
    DC_NORM,
    METHODS,
    DcSetting,
    measured_line,
)
from winsor_papers.reproductions.dc_dpsgd.printed import TABLE_2
from winsor_papers.reproductions.dc_dpsgd.verdict import by_label, span
from winsor_papers.reproductions.reproduction import Line, Reproduced, Request
from winsor_papers.reproductions.verdicts import Comparison, printed_gap, sentence, standing

TIGHTER = "CIFAR-10, epsilon 4"
LINEAR = ("CIFAR-10", TIGHTER, "CIFAR-10-HT")

TUNING_NOTE = (
    "Every method has the same rates to try, each once with a seed that is not reported, judged by "
    "test accuracy, outside epsilon, and then one more, half way between its best and the better "
    'neighbour; "rates tried" is its tuning curve.'
)
OWN_SETTING = ("MNIST", "Fashion-MNIST")
THE_PAPERS = (DC, DC_CODE)


def setting_for(name: str) -> DcSetting:
    """The paper's defaults: epsilon 8 split equally; 4 for the one row that says so."""
    half = 2.0 if name == TIGHTER else 4.0
    return DcSetting(published_trace_epsilon=half, published_gradient_epsilon=half)


def table2(request: Request) -> Reproduced:
    """The rows with a linear layer on public features."""
    notes = (
        "ImageNette is left out: it cannot be had here.",
        dc_tasks.cifar_note(request),
        dc_tasks.TAIL_NOTE,
    )
    return _table(request, LINEAR, notes)


def table2_mnist(request: Request) -> Reproduced:
    """MNIST with the two-layer CNN."""
    return _cnn_table(request, "MNIST")


def table2_fashion(request: Request) -> Reproduced:
    """Fashion-MNIST with the same."""
    return _cnn_table(request, "Fashion-MNIST")


def table2_mnist_ht(request: Request) -> Reproduced:
    """MNIST with a long tail of classes."""
    return _cnn_table(request, "MNIST-HT")


def _cnn_table(request: Request, data: str) -> Reproduced:
    tailed = (dc_tasks.TAIL_NOTE,) if data.endswith("-HT") else ()
    full = () if request.quick else (dc_tasks.LOCKSTEP, dc_tasks.CNN_TUNING)
    return _table(request, (data,), (*tailed, *full))


def _table(request: Request, data: Sequence[str], more: Sequence[str]) -> Reproduced:
    lines, often = [], {}
    for name in data:
        setting, source = setting_for(name), name.split(",")[0]
        task, seeds = dc_tasks.task(source, request), dc_tasks.seeds_for(source, request)
        often[source] = len(seeds)
        for method in METHODS:
            request.say(f"{name}, {method}")
            printed = TABLE_2.get(name, {}).get(DC if method == DC_CODE else method)
            lines.append(measured_line(method, task, setting, seeds, printed, name))
    notes = (
        "Published DC-DPSGD: one noise for each of the two sums, traces ranked without their "
        'noise, which favours the paper; "public code" is the noise that the authors\' code adds.',
        "Non-private training has no budget; its figure stands in the published column.",
        *more,
        dc_tasks.QUICK_NOTE if request.quick else TUNING_NOTE,
    )
    return Reproduced(
        f"Paper 1, Table 2 ({', '.join(data)})",
        "test accuracy in per cent at delta 1e-5 and epsilon 8, where the row does not say 4",
        tuple(lines),
        verdict(lines),
        {"epsilon": 8.0, "delta": 1e-5, "seeds": often, "c1": 1.0, "c2": 0.1},
        notes,
    )


def verdict(lines: Sequence[Line]) -> str:
    """Who is ahead of DP-SGD, in certified runs and in the authors' own."""
    coded = [line for line in lines if line.label["method"] == DC_CODE]
    epsilons = span(line.published_certifies for line in coded)
    ours = "; ".join(
        f"{name}: {standing(comparisons(lines, method), 'data sets', ' points')}"
        for name, method in (("by norm", DC_NORM), ("by loss", DC_LOSS), ("by coin", DC_COIN))
    )
    return (
        f"DC-DPSGD ahead of DP-SGD at the same certified epsilon, by rank: "
        f"{sentence(comparisons(lines, DC), 'data sets', ' points')}. With the noise of the "
        f"authors' code: {sentence(comparisons(lines, DC_CODE), 'data sets', ' points')}, but that "
        f"noise certifies only epsilon {epsilons}. Readings that are not the paper's, against "
        f"DP-SGD, certified: {ours}."
    )


def comparisons(lines: Sequence[Line], method: str) -> list[Comparison]:
    """A method against DP-SGD on each data set; the published run if there is no certified one.

    Of the paper's own algorithm the claim is the printed difference, and the setting is the paper's
    where data, model and length are: MNIST and Fashion-MNIST at full size. CIFAR-10 has other
    features here. The other readings are ours: of them it is only asked whether they are ahead, and
    they say nothing about the paper.
    """
    found = []
    for name in dict.fromkeys(line.label["data"] for line in lines):
        ours = by_label(lines, data=name, method=method)
        base = by_label(lines, data=name, method="DP-SGD")
        if ours is None or base is None or base.certified is None:
            continue
        value = ours.certified or ours.published
        if value is not None:
            figures = TABLE_2.get(name, {}) if method in THE_PAPERS else {}
            claimed = printed_gap(figures.get(DC), figures.get("DP-SGD"))
            own = name in OWN_SETTING and method in THE_PAPERS
            found.append(Comparison(name, value, base.certified, claimed, own))
    return found

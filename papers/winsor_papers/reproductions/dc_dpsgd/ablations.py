"""Paper 1, Tables 3, 5 and 7: k, the split of the budget, theta and p, one at a time.

The claims: accuracy grows with the subspace's dimension k (without one it is lowest); an even
split eps_tr + eps_dp is best or nearly so; a heavier subspace (theta = 2) is better; p = 10 % is
best. For each parameter the verdict sets the value that the paper finds best against the one that
it finds worst, in our runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from winsor.core.contract import ConfigurationError
from winsor_papers.reproductions.dc_dpsgd import tasks as dc_tasks
from winsor_papers.reproductions.dc_dpsgd.descent import DescentTask
from winsor_papers.reproductions.dc_dpsgd.methods import (
    DC,
    DC_CERTIFIED,
    DcSetting,
    certified_runs,
    published_runs,
)
from winsor_papers.reproductions.dc_dpsgd.printed import TABLE_3, TABLE_5, TABLE_7
from winsor_papers.reproductions.dc_dpsgd.runs import SeedOutcomes, tuned
from winsor_papers.reproductions.dc_dpsgd.table2 import OWN_SETTING
from winsor_papers.reproductions.dc_dpsgd.verdict import by_label, span
from winsor_papers.reproductions.reproduction import Line, Measured, Reproduced, Request
from winsor_papers.reproductions.verdicts import Comparison, sentence

Printed = Mapping[str, Mapping[str, Mapping[str, str]]]
"""data set -> parameter -> value -> the paper's accuracy"""

NOTES = (
    'k "none" is read as a tail drawn by coins; its certificate uses the mixture that this is.',
    "The split changes only the published noise: the ranking is never released, so a certified run "
    "spends nothing on it and has no split.",
    "Published: one noise for each of the two sums; traces ranked without their noise.",
)


def table3(request: Request) -> Reproduced:
    return _table(
        "Paper 1, Table 3", TABLE_3, request, (dc_tasks.cifar_note(request), dc_tasks.TAIL_NOTE)
    )


def table5(request: Request) -> Reproduced:
    printed: Printed = TABLE_5
    notes: tuple[str, ...] = ()
    if request.quick:
        printed = {
            "Fashion-MNIST": _without(TABLE_5["Fashion-MNIST"], k=("100", "150"), theta=("1",))
        }
        notes = ("Quick: Fashion-MNIST only, without k = 100, k = 150 and theta = 1.",)
    return _table("Paper 1, Table 5", printed, request, notes)


def table7(request: Request) -> Reproduced:
    note = "The paper's figures are for ImageNette, ours for CIFAR-10: compare directions only."
    printed = {"CIFAR-10": {"p": TABLE_7}}
    return _table("Paper 1, Table 7", printed, request, (note, dc_tasks.cifar_note(request)))


def _without(
    table: Mapping[str, Mapping[str, str]], **left_out: tuple[str, ...]
) -> dict[str, dict[str, str]]:
    return {
        parameter: {v: f for v, f in values.items() if v not in left_out.get(parameter, ())}
        for parameter, values in table.items()
    }


def _table(title: str, printed: Printed, request: Request, notes: tuple[str, ...]) -> Reproduced:
    lines: list[Line] = []
    often = {data: dc_tasks.seeds_for(data, request) for data in printed}
    for data, parameters in printed.items():
        runs = _Runs(dc_tasks.task(data, request), often[data])
        for parameter, values in parameters.items():
            for value, figure in values.items():
                request.say(f"{data}, {parameter} = {value}")
                lines.append(runs.line(data, parameter, value, figure))
    quick = (dc_tasks.QUICK_NOTE,) if request.quick else ()
    return Reproduced(
        title,
        "test accuracy in per cent of DC-DPSGD at epsilon 8, delta 1e-5",
        tuple(lines),
        verdict(lines, printed),
        {"epsilon": 8.0, "delta": 1e-5, "seeds": {data: len(some) for data, some in often.items()}},
        (*NOTES, *notes, *quick),
    )


@dataclass(eq=False)
class _Runs:
    """Runs of one task by setting; the default is part of every parameter's column."""

    task: DescentTask
    seeds: Sequence[int]
    claimed: dict[DcSetting, SeedOutcomes] = field(default_factory=dict)
    sound: dict[DcSetting, SeedOutcomes] = field(default_factory=dict)

    def line(self, data: str, parameter: str, value: str, figure: str) -> Line:
        setting = setting_of(parameter, value)
        if setting not in self.claimed:
            self.claimed[setting] = published_runs(self._at(DC), setting, self.seeds)
        claimed = self.claimed[setting]
        label = {"data": data, "parameter": parameter, "value": value}
        if parameter == "split":
            return Line(label, figure, claimed.measured, published_certifies=claimed.epsilon)
        if setting not in self.sound:
            self.sound[setting] = certified_runs(self._at(DC_CERTIFIED), setting, self.seeds)
        sound = self.sound[setting]
        return Line(label, figure, claimed.measured, sound.measured, sound.epsilon, claimed.epsilon)

    def _at(self, name: str) -> DescentTask:
        """The task at the rate that suits the default setting: every value has the same."""
        run = published_runs if name == DC else certified_runs
        return tuned(self.task, name, lambda on, some: run(on, DcSetting(), some))[0]


def setting_of(parameter: str, value: str) -> DcSetting:
    """The paper's defaults with one parameter changed."""
    default = DcSetting()
    match parameter:
        case "k":
            return replace(default, k=None if value == "none" else int(value))
        case "split":
            trace, gradient = (float(part) for part in value.split("+"))
            return replace(
                default, published_trace_epsilon=trace, published_gradient_epsilon=gradient
            )
        case "theta":
            return replace(default, theta=0.5 if value == "1/2" else float(value))
        case "p":
            return replace(default, tail_fraction=float(value.removesuffix("%")) / 100)
    raise ConfigurationError(
        f"parameter must be one of k, split, theta, p. Got {parameter!r} instead."
    )


def verdict(lines: Sequence[Line], printed: Printed) -> str:
    """The paper's best value of each parameter against its worst."""
    found = []
    for data, parameters in printed.items():
        for parameter, values in parameters.items():
            best, worst = (pick(values, key=lambda v: float(values[v])) for pick in (max, min))
            ours, other = (_measured(lines, data, parameter, v) for v in (best, worst))
            if ours is not None and other is not None:
                claimed = float(values[best]) - float(values[worst])
                label = f"{parameter} {best} over {worst} ({data})"
                found.append(Comparison(label, ours, other, claimed, data in OWN_SETTING))
    epsilons = span(line.published_certifies for line in lines)
    named = [f"{one.label}: {one.word}" for one in found if one.word != "undecided"]
    return (
        f"The paper's best value against its worst, certified where there is a certified run: "
        f"{sentence(found, 'pairs', ' points')}{' (' + '; '.join(named) + ')' if named else ''}; "
        f"the published noise certifies epsilon {epsilons}."
    )


def _measured(lines: Sequence[Line], data: str, parameter: str, value: str) -> Measured | None:
    line = by_label(lines, data=data, parameter=parameter, value=value)
    return None if line is None else line.certified or line.published

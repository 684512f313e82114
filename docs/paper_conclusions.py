"""What papers.md says of each paper before its tables: what holds, after correction, worth.

The sentences are written by hand where they rest on a proof or a calculation. Numbers in them come
from saved results, and what they say of a table depends on whether it has a full run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import averaged_clipping

Records = dict[tuple[str, str], dict[str, Any]]

RULES = next(
    (Path(__file__).parent.parent / "experiments").glob("*/results/rules_fashion_mnist.json")
)

CNN_TABLES = ("table-2-mnist", "table-2-fashion", "table-2-mnist-ht")
"""Those of paper 1's Table 2 that train a network."""

TEXTS = {
    "dc-dpsgd": (
        "Clipping a tail at a larger bound than the body is a sound rule, if each row is judged by "
        "itself (proof: `winsor/rules/discriminative.py`).",
        "The algorithm as printed ranks rows within a batch, so that one record can push another "
        "across the line: its sensitivity is 2 c1 - c2 (proof), and the noise of the authors' code "
        "certifies {code} where it says 8 (accounting: the column *it certifies* of Table 2). A "
        "random subspace knows nothing of the norm.",
        "With bounds in the ratio of three, as large as suits each rule, two bounds judged by each "
        "row's own norm reached {norm} per cent where flat clipping reached {flat}; by rank "
        "{rank}, by coin {coin} ({bench}). {discriminative}",
    ),
    "sco": (
        "Simple clipping is sound as published, with more noise than it needs (proof), and in ten, "
        "a hundred and a thousand dimensions over two decades of n no certified slope is flatter "
        "than the bound's exponent (tables *rates-10*, *rates-100*, *rates-1000*).",
        "The amplification of Theorem 6 is false as stated (calculation). Without it, fixed groups "
        "cost the square root of their number in noise.",
        "Iterative updating stops at the edge of the group means, so that their geometric median, "
        "which updates nothing, and one clipped mean with the whole budget are the rivals to beat. "
        "Neither is beaten: the verdicts of these tables say by what factor iterative updating is "
        "behind simple clipping, one clipped mean and the median.",
    ),
    "value": (
        "Gradient clipping is sound as published; that clipping fades as the loss falls shows on "
        "the synthetic rows of figure 4, where noise alone is not longer than the bound. "
        "{frequency}",
        "Algorithm 3 divides by the mean loss of the batch and is not private at all (proof); with "
        "each row's own loss it is, at the same noise (`winsor/contrib/value/value.py`).",
        "On figure 4's regression it ends where gradient clipping does, for there its bound is the "
        "norm itself. On a network, with each row's own loss, it reached {value} per cent where "
        "flat clipping reached {flat} ({bench}). {runtime}",
    ),
    "aclip": (
        "Averaged clipping is private, with the right sensitivity (proof). At the printed steps "
        "its constrained version (CC), certified, is {real_sgd} on real data and {made_sgd} on "
        "synthetic rows against DP-SGD, and on the latter {open} against UC, its unconstrained "
        "version (Tables 2 and B1; a row is a task, a data set and an epsilon).",
        "Two clipped means can be 2 lambda apart, not lambda: the published noise certifies "
        "up to {leak} times the claimed epsilon (accounting: the column *it certifies* of Table "
        "2). And the noise does not shrink with the batch.",
        "On a small network it stays near chance at equal epsilon: {averaged} per cent against "
        "{flat} ({bench}). On convex problems the fair rival is DP-SGD with a step that suits it. "
        "At the better of two, the printed one and ten times it, CC, certified, is "
        "{real_logistic} for logistic and {real_ridge} for ridge regression on real data, and "
        "{made_logistic} and {made_ridge} on synthetic rows. There the loss of DP-SGD is below "
        "CC's end somewhere on its way in {passing} curves (figures 3 and B2): a shorter run might "
        "have been ahead. {on_features}",
    ),
    "modelmix": (
        "Mixing lowers the epsilon of a run with too little Gaussian noise, and certified numbers "
        "are close to the printed ones (calculations: section 4.3, figure 3).",
        "The account is certified here for every way a gradient can be spread over coordinates.",
        "The same variance spent on Gaussian noise has a smaller epsilon in every cell of section "
        "4.3 (calculation), and at equal certified epsilon no cell of [when mixing "
        "pays](modelmix.md) shows mixing ahead. {transfer}{mixing}{unrun}",
    ),
}  # fmt: skip


def conclusions(key: str, records: Records) -> tuple[str, str, str]:
    """The three sentences of a paper."""
    known = {
        **_rules(),
        **averaged_clipping.facts(records),
        "code": _code(records),
        "discriminative": _discriminative(records),
        "frequency": _frequency(records),
        "runtime": _runtime(records),
        "transfer": _transfer(records),
        "mixing": _mixing(records),
        "unrun": _unrun(records),
    }
    holds, corrected, worth = (text.format(**known).strip() for text in TEXTS[key])
    return holds, corrected, worth


def _rules() -> dict[str, str]:
    """Accuracies of the rules at equal epsilon and tuning, from their own benchmark."""
    table = json.loads(RULES.read_text())["table"]
    names = {
        "flat": "flat", "norm": "dc norm", "rank": "dc rank",
        "coin": "dc random", "value": "value", "averaged": "averaged",
    }  # fmt: skip
    found = {
        short: f"{table[name]['mean']:.1f} ± {table[name]['sd']:.1f}"
        for short, name in names.items()
    }
    folder = "experiments/2026-11-rules-at-one-epsilon"
    where = f"Fashion-MNIST, epsilon 3, five seeds, equal tuning: `{folder}`"
    return {**found, "bench": where}


def _full(records: Records, *key: str) -> list[dict[str, Any]]:
    """The lines of a table that has a full run; none where it has not."""
    paper, table = key
    record = records.get((paper, table))
    found: list[dict[str, Any]] = [] if record is None or record["quick"] else record["lines"]
    return found


def _mean(line: dict[str, Any]) -> str:
    found = line["certified"] or line["published"]
    return f"{found['mean']:.1f}"


def _code(records: Records) -> str:
    """What the noise of paper 1's public code certifies in Table 2."""
    found = [
        line["published_certifies"]
        for table in ("table-2", *CNN_TABLES)
        for line in _full(records, "dc-dpsgd", table)
        if line["label"]["method"].endswith("public code")
    ]
    if not found:
        return "an epsilon in the thousands"
    if all(math.isinf(float(epsilon)) for epsilon in found):
        return "no epsilon at all"
    return f"an epsilon of {min(map(float, found)):.3g} or more"


def _discriminative(records: Records) -> str:
    """Paper 1 on its own tables."""
    kinds = {"linear layers": ("table-2",), "CNN": CNN_TABLES}
    cases = {model: _cases(records, tables) for model, tables in kinds.items()}
    if any(cases.values()):
        told = "; with ".join(f"{model} {found}" for model, found in cases.items() if found)
        return (
            "At the paper's bounds, in the ratio of ten, flat clipping and two bounds by norm, "
            "loss, coin and rank, all certified, reached in Table 2: "
            f"with {told} per cent.{_texts(records)}"
        )
    tables = ("mnist", "figure-3", "figure-4", "table-3", "table-5", "table-7")
    run = [name for name in tables if _full(records, "dc-dpsgd", name)]
    if not run:
        return "On the paper's own tables there is no run at full strength yet, so no verdict."
    return (
        f"Of the paper's own tables {_listed(run)} {_has(run)} a run at full strength; Table 2, "
        "which compares methods, has none yet."
    )


def _texts(records: Records) -> str:
    """Paper 1's E2E row with a language model: BLEU, certified."""
    found = {line["label"]["method"]: line for line in _full(records, "dc-dpsgd", "e2e-smollm2")}
    if not found:
        return ""
    flat, norm, rank = (_mean(found[name]) for name in ("DP-SGD", "DC-DPSGD, by norm", "DC-DPSGD"))
    return f" BLEU on E2E texts (*e2e-smollm2*): {flat}, by norm {norm}, by rank {rank}."


def _cases(records: Records, tables: Sequence[str]) -> str:
    """Certified accuracies by data set, of flat clipping and of who decides on the tail, of the
    tables that have a full run with all of them."""
    by_data: dict[str, dict[str, str]] = {}
    for line in (line for table in tables for line in _full(records, "dc-dpsgd", table)):
        by_data.setdefault(line["label"]["data"], {})[line["label"]["method"]] = _mean(line)
    compared = ("DP-SGD", *(f"DC-DPSGD, by {by}" for by in ("norm", "loss", "coin")), "DC-DPSGD")
    return ", ".join(
        f"{name} {_listed([found[method] for method in compared])}"
        for name, found in by_data.items()
        if found.keys() >= set(compared)
    )


def _frequency(records: Records) -> str:
    """Paper 3, figure 1: on how many lines clipping fades."""
    lines = _full(records, "value", "figure-1")
    if not lines:
        return "Figure 1, on images, has no run at full strength yet."
    ends = [tuple(map(float, _ends(line["extra"]["clipped by epoch"]))) for line in lines]
    fewer = sum(last < first for first, last in ends)
    return (
        f"On images (figure 1) fewer gradients are clipped in the last epoch than in the first on "
        f"{fewer} of {len(ends)} lines."
    )


def _ends(text: str) -> tuple[str, str]:
    words = text.split()
    return words[0], words[-1]


def _runtime(records: Records) -> str:
    """Paper 3, table 2: what a step costs."""
    found: dict[str, list[float]] = {}
    for line in _full(records, "value", "table-2"):
        if line["certified"] is not None:
            found.setdefault(line["label"]["method"], []).append(line["certified"]["mean"])
    if not found:
        return ""
    spans = {name: f"{min(some):.1f} to {max(some):.1f}" for name, some in found.items()}
    pairs = list(zip(found["VC"], found["GC"], strict=True))
    cheaper = sum(value < gradient for value, gradient in pairs)
    return (
        f"With the paper's bound a step of it costs {spans['VC']} times one of SGD, a step of "
        f"gradient clipping as it is done here {spans['GC']} times (processor time, Table 2): the "
        f"former is the cheaper one on {cheaper} of {len(pairs)} models."
    )


def _transfer(records: Records) -> str:
    """Paper 5 on public features."""
    found = {
        (line["label"]["method"], line["label"]["nominal"]): _mean(line)
        for line in _full(records, "modelmix", "transfer")
    }
    if not found:
        return ""
    return (
        f"On public features (table *transfer*) DP-SGD reached {found['DP-SGD', '2']} per cent at "
        f"epsilon 2, mixing {found['mixing', '2']} at the same certified epsilon and "
        f"{found['mixing', '0.64']} at 0.64. "
    )


def _mixing(records: Records) -> str:
    """Paper 5's tables on scattering coefficients and features, certified, over their epsilons."""
    steps, printed = "each with a step of its own", "at the printed constants"
    images = "With the paper's network on scattering coefficients of Fashion-MNIST"
    paid = "With the statistics that the paper pays for"
    same = "At the rate, length, p and width of Tables 2 and 3, on public features of CIFAR-10"
    return (
        _compared(records, "table-1", "tuned", f"{images}, certified and {steps}")
        + _compared(records, "table-1-statistics", "as printed", f"{paid}, {printed}")
        + _with_momentum(records)
        + _compared(records, "table-2-features", "tuned", f"{same}, certified and {steps}")
    )


def _with_momentum(records: Records) -> str:
    """What the optimiser of the code that paper 5 builds on makes of the printed steps."""
    found, _ = _over_epsilons(records, "table-1-statistics", "with momentum")
    if not found:
        return ""
    lines = _full(records, "modelmix", "table-1-statistics")
    theirs = {
        name: [float(line["printed"]) for line in lines if line["label"]["method"] == name]
        for name in found
    }
    told = "; ".join(
        f"{name} {min(means):.1f} to {max(means):.1f} (paper: {min(theirs[name]):.1f} to "
        f"{max(theirs[name]):.1f})"
        for name, means in found.items()
    )
    ahead = sum(m > p for m, p in zip(found["mixing"], found["DP-SGD"], strict=True))
    return (
        f"With the momentum of the code that the paper builds on: {told}. There mixing is ahead at "
        f"{ahead} of {len(found['mixing'])} epsilons: DP-SGD's printed step is then too long. "
    )


def _over_epsilons(
    records: Records, table: str, constants: str
) -> tuple[dict[str, list[float]], list[str]]:
    """Certified means of each method, in the order of the lines, and all epsilons."""
    found: dict[str, list[float]] = {}
    lines = _full(records, "modelmix", table)
    for line in lines:
        if line["label"]["constants"] == constants:
            found.setdefault(line["label"]["method"], []).append(line["certified"]["mean"])
    return found, sorted({line["label"]["nominal"] for line in lines}, key=float)


def _compared(records: Records, table: str, constants: str, where: str) -> str:
    found, at = _over_epsilons(records, table, constants)
    if not found:
        return ""
    spans = {name: f"{min(means):.1f} to {max(means):.1f}" for name, means in found.items()}
    return (
        f"{where} (*{table}*), DP-SGD reached "
        f"{spans['DP-SGD']} per cent at epsilon {at[0]} to {at[-1]}, mixing {spans['mixing']}. "
    )


def _unrun(records: Records) -> str:
    missing = [n for n in ("1", "2", "3") if not _full(records, "modelmix", f"table-{n}")]
    if not missing:
        return ""
    return f"Tables without a run at full strength on the paper's own networks: {_listed(missing)}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"

"""Every table and figure that `winsor reproduce` can make again: paper, table, and where it is.

To add one, write a function ``Request -> Reproduced`` and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from winsor.core.contract import ConfigurationError
from winsor_papers.reproductions.reproduction import Reproduction


@dataclass(frozen=True)
class Paper:
    """A paper and its reproductions, by the name of the table."""

    title: str
    tables: dict[str, str]


PAPERS = {
    "dc-dpsgd": Paper(
        "1. DC-DPSGD: clip body and tail separately",
        {
            "mnist": "winsor_papers.reproductions.dc_dpsgd.baseline:mnist",
            "table-2": "winsor_papers.reproductions.dc_dpsgd.table2:table2",
            "table-2-mnist": "winsor_papers.reproductions.dc_dpsgd.table2:table2_mnist",
            "table-2-fashion": "winsor_papers.reproductions.dc_dpsgd.table2:table2_fashion",
            "table-2-mnist-ht": "winsor_papers.reproductions.dc_dpsgd.table2:table2_mnist_ht",
            "figure-3": "winsor_papers.reproductions.dc_dpsgd.figure3:figure3",
            "figure-4": "winsor_papers.reproductions.dc_dpsgd.figure4:figure4",
            "table-3": "winsor_papers.reproductions.dc_dpsgd.ablations:table3",
            "table-5": "winsor_papers.reproductions.dc_dpsgd.ablations:table5",
            "table-7": "winsor_papers.reproductions.dc_dpsgd.ablations:table7",
            "e2e": "winsor_papers.reproductions.dc_dpsgd.e2e:e2e",
            "e2e-smollm2": "winsor_papers.reproductions.dc_dpsgd.e2e_smollm2:e2e_smollm2",
        },
    ),
    "sco": Paper(
        "2. Heavy-tailed private convex optimisation at optimal rates",
        {
            "rates-10": "winsor_papers.reproductions.sco.tables:rates_10",
            "rates-100": "winsor_papers.reproductions.sco.tables:rates_100",
            "rates-1000": "winsor_papers.reproductions.sco.tables:rates_1000",
            "theorem-6": "winsor_papers.reproductions.sco.tables:theorem_6",
        },
    ),
    "value": Paper(
        "3. DP-SGD with gradient clipping and value clipping",
        {
            "figure-1": "winsor_papers.reproductions.value.frequency:figure_1",
            "figures-2-3": "winsor_papers.reproductions.value.figures:figures_2_3",
            "table-2": "winsor_papers.reproductions.value.runtime:table_2",
            "figure-4": "winsor_papers.reproductions.value.synthetic:figure_4",
            "figure-5": "winsor_papers.reproductions.value.sweep:figure_5",
        },
    ),
    "aclip": Paper(
        "4. AClipped-dpSGD: clip the averaged gradient",
        {
            "table-2": "winsor_papers.reproductions.aclip.convex:table_2",
            "table-3": "winsor_papers.reproductions.aclip.table3:table_3",
            "table-3-features": "winsor_papers.reproductions.aclip.features:table_3_features",
            "table-b1": "winsor_papers.reproductions.aclip.convex:table_b1",
            "table-2-synthetic": "winsor_papers.reproductions.aclip.convex:table_2_synthetic",
            "table-b1-synthetic": "winsor_papers.reproductions.aclip.convex:table_b1_synthetic",
            "figure-1": "winsor_papers.reproductions.aclip.figures:figure_1",
            "figure-2": "winsor_papers.reproductions.aclip.figure2:figure_2",
            "figure-2-features": "winsor_papers.reproductions.aclip.features:figure_2_features",
            "figure-3": "winsor_papers.reproductions.aclip.figures:figure_3",
            "figure-b1": "winsor_papers.reproductions.aclip.figures:figure_b1",
            "figure-b2": "winsor_papers.reproductions.aclip.figures:figure_b2",
            "figure-b3": "winsor_papers.reproductions.aclip.figures:figure_b3",
            "figure-b4": "winsor_papers.reproductions.aclip.figures:figure_b4",
        },
    ),
    "modelmix": Paper(
        "5. ModelMix: random mixing of iterates",
        {
            "section-4.3": "winsor_papers.reproductions.modelmix.lines:section_43",
            "figure-3": "winsor_papers.reproductions.modelmix.curves:figure_3",
            "figure-2": "winsor_papers.reproductions.modelmix.lines:figure_2",
            "figure-2ab": "winsor_papers.reproductions.modelmix.unnoised:figure_2_ab",
            "table-1": "winsor_papers.reproductions.modelmix.table1:table_1",
            "table-1-statistics": "winsor_papers.reproductions.modelmix.table1:table_1_statistics",
            "table-1-cifar": "winsor_papers.reproductions.modelmix.table1:table_1_cifar",
            "table-2": "winsor_papers.reproductions.modelmix.deep:table_2",
            "table-3": "winsor_papers.reproductions.modelmix.deep:table_3",
            "table-2-features": "winsor_papers.reproductions.modelmix.features:table_2_features",
            "table-3-features": "winsor_papers.reproductions.modelmix.features:table_3_features",
            "section-5.3": "winsor_papers.reproductions.modelmix.lines:section_53",
            "transfer": "winsor_papers.reproductions.modelmix.transfer:transfer",
        },
    ),
}


def find(paper: str, table: str | None = None) -> dict[str, Reproduction]:
    """The reproductions of ``paper``: one table, or all of them in order."""
    if paper not in PAPERS:
        raise ConfigurationError(
            f"paper must be one of {', '.join(PAPERS)}. Got {paper!r} instead."
        )
    tables = PAPERS[paper].tables
    if table is not None and table not in tables:
        raise ConfigurationError(
            f"table must be one of {', '.join(tables)} for {paper}. Got {table!r} instead."
        )
    wanted = tables if table is None else {table: tables[table]}
    return {name: _load(home) for name, home in wanted.items()}


def _load(home: str) -> Reproduction:
    module, attribute = home.split(":")
    function: Reproduction = getattr(import_module(module), attribute)
    return function

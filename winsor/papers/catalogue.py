"""Every table and figure that `winsor reproduce` can make again: paper, table, and where it is.

To add one, write a function ``Request -> Reproduced`` and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from winsor.contract import ConfigurationError
from winsor.papers.reproduction import Reproduction


@dataclass(frozen=True)
class Paper:
    """A paper and its reproductions, by the name of the table."""

    title: str
    tables: dict[str, str]


PAPERS = {
    "dc-dpsgd": Paper(
        "1. DC-DPSGD: clip body and tail separately",
        {
            "mnist": "winsor.papers.dc_baseline:mnist",
            "table-2": "winsor.papers.dc_table2:table2",
            "figure-4": "winsor.papers.dc_figure4:figure4",
            "table-3": "winsor.papers.dc_ablations:table3",
            "table-5": "winsor.papers.dc_ablations:table5",
            "table-7": "winsor.papers.dc_ablations:table7",
            "e2e": "winsor.papers.dc_e2e:e2e",
        },
    ),
    "sco": Paper(
        "2. Heavy-tailed private convex optimisation at optimal rates",
        {
            "rates": "winsor.papers.sco_tables:rates",
            "theorem-6": "winsor.papers.sco_tables:theorem_6",
        },
    ),
    "value": Paper(
        "3. DP-SGD with gradient clipping and value clipping",
        {
            "figure-1": "winsor.papers.value_figures:figure_1",
            "figures-2-3": "winsor.papers.value_figures:figures_2_3",
            "table-2": "winsor.papers.value_runtime:table_2",
        },
    ),
    "aclip": Paper(
        "4. AClipped-dpSGD: clip the averaged gradient",
        {
            "table-2": "winsor.papers.aclip_convex:table_2",
            "table-3": "winsor.papers.aclip_table3:table_3",
            "table-b1": "winsor.papers.aclip_convex:table_b1",
        },
    ),
    "modelmix": Paper(
        "5. ModelMix: random mixing of iterates",
        {
            "section-4.3": "winsor.papers.modelmix_lines:section_43",
            "figure-2": "winsor.papers.modelmix_lines:figure_2",
            "table-1": "winsor.papers.modelmix_lines:table_1",
            "table-2": "winsor.papers.modelmix_deep:table_2",
            "table-3": "winsor.papers.modelmix_deep:table_3",
            "section-5.3": "winsor.papers.modelmix_lines:section_53",
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

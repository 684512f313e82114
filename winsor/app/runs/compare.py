"""Comparisons: variants of one configuration, each with several seeds, one run after another.

    DIR/compare.json                 the variants and seeds
    DIR/VARIANT/seed-N/              a run directory each, resumable on its own
    DIR/summary.json                 means and intervals

All runs train on the same rows, so publishing them all spends more than each one does: the summary
holds the certified epsilon of everything together.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winsor.app.runs.assemble import check
from winsor.app.runs.config import CompareSettings, Config, DataSettings, from_table
from winsor.app.runs.data import Data, load_data
from winsor.app.runs.directory import ComparisonFolder
from winsor.app.runs.execute import Interrupted, execute
from winsor.app.runs.folder import sense
from winsor.app.runs.progress import make_observer
from winsor.app.runs.reading import read
from winsor.app.runs.summary import Interval, summarise, total
from winsor.core.contract import ConfigurationError
from winsor.core.ledger.ledger import Ledger

CHOSEN_BY_NAME = ("model", "rule", "mechanism", "optimizer", "schedule")


def _refuse_many_looks(config: Config) -> None:
    if config.record.held_out_epsilon is not None:
        raise ConfigurationError(
            "record.held_out_epsilon must be left out of a comparison: every run would look at the "
            f"same held-out rows. Got {config.record.held_out_epsilon!r} instead. Compare on "
            "public rows, or tune inside one budget: winsor tune."
        )


@dataclass(frozen=True)
class Comparison:
    """Named configurations, each with a run per seed."""

    name: str
    seeds: tuple[int, ...]
    variants: dict[str, dict[int, Config]]

    @staticmethod
    def from_table(table: Mapping[str, Any], folder: Path) -> Comparison:
        """Read a comparison, and check every run of it before the first one starts."""
        if "compare" not in table:
            raise ConfigurationError(
                'compare must be given: a table with "seeds" and "variants". It is missing.'
            )
        settings = read(CompareSettings, table["compare"], "compare")
        base = {key: value for key, value in table.items() if key != "compare"}
        name = str(base.get("name", "compare"))
        variants: dict[str, dict[int, Config]] = {}
        for i, change in enumerate(settings.variants or [{"name": name}]):
            label, changed = _changed(base, change, f"compare.variants[{i}]")
            if label in variants:
                raise ConfigurationError(
                    f"compare.variants[{i}].name must differ from the others. Got {label!r} twice."
                )
            variants[label] = {}
            for seed in settings.seeds:
                try:
                    config = from_table({**changed, "seed": seed}, folder)
                    check(config)
                    _refuse_many_looks(config)
                except ConfigurationError as error:
                    raise ConfigurationError(f"variant {label!r}: {error}") from error
                variants[label][seed] = config
        return Comparison(name, tuple(settings.seeds), variants)

    def to_table(self) -> dict[str, Any]:
        """Plain values that name this comparison: the same again may resume it."""
        return {
            "name": self.name,
            "seeds": list(self.seeds),
            "folders": [folder.name for folder in self.folders(Path()).values()],
            "variants": {
                label: next(iter(runs.values())).to_table() for label, runs in self.variants.items()
            },
        }

    def folders(self, path: Path) -> dict[str, Path]:
        """Variant -> its directory. Names that look alike as file names are numbered."""
        found: dict[str, Path] = {}
        for label in self.variants:
            plain = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "variant"
            taken = {folder.name for folder in found.values()}
            name, k = plain, 2
            while name in taken:
                name, k = f"{plain}-{k}", k + 1
            found[label] = path / name
        return found

    def execute(self, path: Path, quiet: bool, as_json: bool, source: str) -> dict[str, Any]:
        """Do, or finish, every run; then summarise them."""
        folder = ComparisonFolder(path)
        folder.claim(self.to_table(), source)
        if folder.finished:
            folder.refuse_disagreements(leftovers=False)
            return dict(folder.read(folder.result_name))
        ledger = Ledger({"method": "comparison"}, folder.ledger)
        try:
            folder.bind(ledger)
            with sense(path):
                return folder.seal_result(self._finish(folder, quiet, as_json))
        finally:
            ledger.close()

    def _finish(self, folder: ComparisonFolder, quiet: bool, as_json: bool) -> dict[str, Any]:
        results: dict[str, dict[int, dict[str, Any]]] = {}
        load = _Latest()
        folders = self.folders(folder.path)
        ledgers = []
        for label in folders:
            results[label] = {}
            for seed, config in self.variants[label].items():
                place = folders[label] / f"seed-{seed}"
                with make_observer(quiet, as_json, f"{label}, seed {seed}") as observer:
                    try:
                        results[label][seed] = execute(config, place, observer, load=load)
                    except Interrupted as stop:
                        raise stop.instead(f"winsor compare CONFIG.toml --run {folder}") from None
                folder.name((place / "ledger.jsonl").relative_to(folder.path).as_posix())
                ledgers.append(Ledger.read(place / "ledger.jsonl"))
        runs = [run for seeds in results.values() for run in seeds.values()]
        everything = total(
            ledgers, [run["delta"] for run in runs], [run["relation"] for run in runs]
        )
        return {**summarise(results), "together": everything}


class _Latest:
    """Reads data once for runs in a row that share them; keeps one set, as they may be large."""

    def __init__(self) -> None:
        self._settings: DataSettings | None = None
        self._data: Data | None = None

    def __call__(self, settings: DataSettings) -> Data:
        if self._data is None or settings != self._settings:
            self._data = None
            self._data = load_data(settings)
            self._settings = settings
        return self._data


def _changed(
    base: Mapping[str, Any], change: Mapping[str, Any], path: str
) -> tuple[str, dict[str, Any]]:
    """The base with a variant's settings. A part chosen by name anew forgets the old options."""
    if not isinstance(change.get("name"), str):
        raise ConfigurationError(f"{path}.name must be given, as text. It is missing.")
    changed = copy.deepcopy(dict(base))
    for key, value in change.items():
        if key == "seed":
            raise ConfigurationError(
                f"{path}.seed must be left out: compare.seeds gives the seeds."
            )
        merge = isinstance(value, Mapping) and isinstance(changed.get(key), Mapping)
        if merge and not (key in CHOSEN_BY_NAME and "name" in value):
            changed[key] = {**changed[key], **value}
        else:
            changed[key] = value
    return change["name"], changed


def show(summary: dict[str, Any], quiet: bool, as_json: bool) -> None:
    """Print a summary: a table for people, a line of JSON for programs."""
    if quiet:
        return
    if as_json:
        print(json.dumps({"event": "summary", **summary}), flush=True)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(m for v in summary["variants"].values() for m in v["metrics"]))
    table = Table("variant", "epsilon", *names, "seconds", title="Held-out metrics, 95 % intervals")
    for label, variant in summary["variants"].items():
        cells = [_cell(variant["metrics"].get(name)) for name in names]
        table.add_row(Text(label), f"{variant['epsilon']:.4g}", *cells, _cell(variant["seconds"]))
    console = Console()
    console.print(table)
    everything = summary["together"]
    if everything is not None:
        console.print(
            f"All {everything['runs']} runs together: epsilon {everything['epsilon']:.4g} at delta "
            f"{everything['delta']:.3g}, if they saw the same rows and all are published."
        )


def _cell(value: dict[str, Any] | None) -> str:
    return "" if value is None else str(Interval(**value))

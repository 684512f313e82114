"""Several variants of one configuration over several seeds, one run after the other.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from winsor.app.runs.config import CompareSettings, Config, DataSettings, from_table
from winsor.app.runs.data import Data, load_data
from winsor.app.runs.directory import RunError, replace_file, writing
from winsor.app.runs.execute import execute
from winsor.app.runs.intervals import Interval, interval, paired_difference
from winsor.app.runs.parts import check
from winsor.app.runs.progress import make_observer
from winsor.app.runs.reading import read
from winsor.app.runs.stopping import Interrupted
from winsor.app.runs.tasks import make_task
from winsor.core.contract import ConfigurationError, Neighbouring
from winsor.core.ledger.guarantee import guarantee
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
        """Every run is checked here, before the first one starts."""
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
                    make_task(config)
                    _refuse_many_looks(config)
                except ConfigurationError as error:
                    raise ConfigurationError(f"variant {label!r}: {error}") from error
                variants[label][seed] = config
        return Comparison(name, tuple(settings.seeds), variants)

    def to_table(self) -> dict[str, Any]:
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
        """Do, or finish, every run; then summarise."""
        self._claim(path, source)
        results: dict[str, dict[int, dict[str, Any]]] = {}
        load = _Latest()
        for label, folder in self.folders(path).items():
            results[label] = {}
            for seed, config in self.variants[label].items():
                with make_observer(quiet, as_json, f"{label}, seed {seed}") as observer:
                    try:
                        results[label][seed] = execute(
                            config, folder / f"seed-{seed}", observer, load=load
                        )
                    except Interrupted as stop:
                        raise stop.instead(f"winsor compare CONFIG.toml --run {path}") from None
        ledgers = [
            Ledger.read(folder / f"seed-{seed}" / "ledger.jsonl")
            for label, folder in self.folders(path).items()
            for seed in self.variants[label]
        ]
        runs = [run for seeds in results.values() for run in seeds.values()]
        everything = total(
            ledgers, [run["delta"] for run in runs], [run["relation"] for run in runs]
        )
        summary = {**summarise(results), "together": everything}
        replace_file(path / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
        return summary

    def _claim(self, path: Path, source: str) -> None:
        """The directory is new, or was made for the same comparison."""
        record = path / "compare.json"
        content = (json.dumps(self.to_table(), indent=1) + "\n").encode()
        with writing(path):
            if record.exists():
                if json.loads(record.read_text()) != self.to_table():
                    raise RunError(
                        f"{path} holds another comparison. Choose another directory with --run, "
                        "or restore the configuration to resume."
                    )
                return
            path.mkdir(parents=True, exist_ok=True)
        replace_file(path / "compare.toml", source.encode())
        replace_file(record, content)


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


# --------------------------------------------------------------------------------------- summary


Metrics = Sequence[tuple[int, Mapping[str, float]]]
"""(seed, held-out metrics) of each run of a variant."""


def compared(
    runs: Metrics, baseline: Metrics | None
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Each metric's mean over the seeds, and its difference from the baseline, seed by seed."""
    metrics, differences = {}, {}
    for name in dict.fromkeys(name for _, found in runs for name in found):
        metrics[name] = interval([found[name] for _, found in runs if name in found])
        difference = paired_difference(_by_seed(runs, name), _by_seed(baseline or (), name))
        if difference is not None:
            differences[name] = difference
    return metrics, differences


def _by_seed(runs: Metrics, name: str) -> dict[int, float]:
    return {seed: found[name] for seed, found in runs if name in found}


def summarise(results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Mean and interval of every metric for each variant, and differences from the first."""
    held_out = {
        label: [(seed, run["held_out"]) for seed, run in runs.items()]
        for label, runs in results.items()
    }
    first = next(iter(results))
    summary: dict[str, Any] = {"baseline": first, "variants": {}}
    for label, runs in results.items():
        baseline = None if label == first else held_out[first]
        metrics, differences = compared(held_out[label], baseline)
        summary["variants"][label] = {
            "seeds": list(runs),
            "epsilon": max(run["epsilon"] for run in runs.values()),
            "delta": max(run["delta"] for run in runs.values()),
            "main_metric": next(iter(runs.values()))["main_metric"],
            "metrics": {name: found.to_json() for name, found in metrics.items()},
            "difference": {name: found.to_json() for name, found in differences.items()},
            "seconds": interval([run["seconds"] for run in runs.values()]).to_json(),
        }
    return summary


def total(
    ledgers: Sequence[Ledger], deltas: Sequence[float], relations: Sequence[str]
) -> dict[str, Any] | None:
    """What runs on the same rows have spent together, at the largest of their deltas.

    None if they do not share a relation: there is then no one number.
    """
    if len(set(relations)) != 1:
        return None
    found = guarantee(ledgers, max(deltas), Neighbouring(relations[0]))
    return {"epsilon": found.epsilon, "delta": found.delta, "runs": len(ledgers)}


def show(summary: dict[str, Any], quiet: bool, as_json: bool) -> None:
    """A table for people, a line for programs."""
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

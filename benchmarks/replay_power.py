"""What replay finds and what it does not accuse: planted mistakes, honest trainings, Opacus.

    python benchmarks/replay_power.py                           # 100 planted, 1,000 honest, Opacus
    python benchmarks/replay_power.py --planted 35 --honest 100

Goals: every planted mistake found, no false alarm. Plants that winsor refuses by itself, with a
typed error, are counted apart and do not count as found. Honest trainings go through all rules,
samplers, mechanisms and estimators, on other data in every round. One process, one core.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from typing import Any

import torch
from saving import save
from selfaudit.honest_trials import honest_trials, tensors
from selfaudit.planted import planted
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from winsor.audit import replay
from winsor.audit.replaying.opacus import opacus_adapter
from winsor.contrib.modelmix.mechanism import ModelMix
from winsor.core.contract import WinsorError


def planted_results(count: int) -> dict[str, Any]:
    """``count`` plants that winsor itself lets pass, and which of them replay found."""
    judged: list[tuple[str, str]] = []
    refused: set[str] = set()
    for trial in (trial for seed in itertools.count() for trial in planted(seed)):
        if len(judged) == count:
            break
        if trial.name in refused:
            continue
        try:
            report = replay(trial.train, trial.dataset, first_only=True)
        except WinsorError:
            refused.add(trial.name)
            continue
        judged.append((trial.name, report.findings[0].kind if report.findings else ""))
    kinds = sorted({kind for _, kind in judged if kind})
    return {
        "planted": len(judged),
        "found": sum(bool(kind) for _, kind in judged),
        "missed": sorted({name for name, kind in judged if not kind}),
        "first_finding": {kind: sum(k == kind for _, k in judged) for kind in kinds},
        "refused_by_winsor": sorted(refused),
    }


def honest_results(count: int) -> dict[str, Any]:
    alarms, largest, uncoupled, distinct = [], 0.0, 0, set()
    for trial in itertools.islice(honest_trials(mechanisms=[ModelMix(0.1)]), count):
        report = replay(trial.train, trial.dataset, absent=trial.absent)
        largest = max(largest, report.largest_share)
        uncoupled += any("not judged" in note for note in report.notes)
        distinct.add(trial.name)
        if not report.passed:
            alarms.append(f"{trial.name}: {report.findings[0]}")
    return {
        "honest": count,
        "distinct": len(distinct),
        "false_alarms": len(alarms),
        "alarms": alarms[:20],
        "largest_share_of_a_claim": round(largest, 6),
        "with_steps_not_judged": uncoupled,
    }


# ------------------------------------------------------------------------------------------ Opacus


def opacus_training(clipping: str, poisson: bool = True) -> Any:
    """The same small training with Opacus."""
    from opacus import PrivacyEngine

    def train(dataset: TensorDataset) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        loader = DataLoader(dataset, batch_size=8)
        more: dict[str, Any] = {}
        if clipping == "adaptive":
            more = {
                "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2,
                "max_clipbound": 10.0, "min_clipbound": 0.01, "unclipped_num_std": 1.0,
            }  # fmt: skip
        net, optimizer, batches = PrivacyEngine().make_private(
            module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0,
            poisson_sampling=poisson, clipping=clipping, **more,
        )  # fmt: skip
        for rows, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(rows), labels).backward()
            optimizer.step()
        return model

    return train


def opacus_results() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for clipping in ("flat", "adaptive"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = replay(opacus_training(clipping), tensors(0), adapters=[opacus_adapter()])
        found[clipping] = {
            "verdict": report.verdict,
            "releases": report.releases,
            "largest_share_of_a_claim": round(report.largest_share, 6),
            "findings": [str(finding) for finding in report.findings[:4]],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planted", type=int, default=100)
    parser.add_argument("--honest", type=int, default=1000)
    parser.add_argument("--no-opacus", action="store_true")
    parser.add_argument("--dry", action="store_true", help="print, and save nothing")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    result: dict[str, Any] = {"planted": planted_results(asked.planted)}
    print(result["planted"], flush=True)
    result["honest"] = honest_results(asked.honest)
    print(result["honest"], flush=True)
    if not asked.no_opacus:
        result["opacus"] = opacus_results()
        print(result["opacus"], flush=True)
    result["processor_seconds"] = round(time.process_time() - started, 1)
    print(result["processor_seconds"])
    if not asked.dry:
        print(save("replay_power", result))


if __name__ == "__main__":
    main()

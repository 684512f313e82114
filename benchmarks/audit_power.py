"""How strong is the audit? Power, false alarms, tightness and time, measured on this machine.

    .venv/bin/python benchmarks/audit_power.py            every part that has no result yet
    .venv/bin/python benchmarks/audit_power.py --again    every part, about 15 minutes of one core
    .venv/bin/python benchmarks/audit_power.py power alarms "time of mechanisms" ...

Results go to benchmarks/results/audit_power.json, part by part, so that an interrupted benchmark
goes on where it stopped: a part that is not asked for keeps its last result. All runs go through
the real rule, door, noise and accountant.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from saving import save
from selfaudit.honest import ADD, SINGLE, calibrated
from selfaudit.mistakes import LowNoise
from winsor_papers.neighbouring import NOMINAL, AuditSetting, RuleExperiment, canary

from winsor.audit.claims import USUAL_DELTA, certified_claim, gaussian_mu, measured_epsilon
from winsor.audit.curve import curve_test
from winsor.audit.example import example
from winsor.audit.one_run import audit_training
from winsor.audit.suite import run
from winsor.core.noise.gaussian import Gaussian
from winsor.core.sampling.samplers import FullBatch, Poisson
from winsor.rules.averaged import Averaged
from winsor.rules.flat import Flat

COMMANDS = ("mechanisms", "mechanisms --quick", "mutants --quick", "published --quick")
RESULTS = Path(__file__).parent / "results" / "audit_power.json"


def full_batch(mechanism: Any, seed: int) -> RuleExperiment:
    return RuleExperiment(
        Flat(1.0), canary(ADD), AuditSetting(mechanism, FullBatch(NOMINAL), ADD, seed=seed)
    )


def sampled(mechanism: Any, seed: int, q: float = 0.05, steps: int = 200) -> RuleExperiment:
    setting = AuditSetting(mechanism, Poisson(NOMINAL, q), ADD, steps, seed)
    return RuleExperiment(Flat(1.0), canary(ADD), setting)


def power() -> dict[str, Any]:
    """How often noise that is 10 % low is flagged, at claimed epsilon 4."""
    found: dict[str, Any] = {}
    claim = certified_claim(full_batch(Gaussian(SINGLE), 0).history, ADD)
    for runs in (20_000, 50_000, 200_000):
        flags = [
            curve_test(full_batch(LowNoise(SINGLE), seed), claim, runs).violated
            for seed in range(100)
        ]
        found[f"full batch, {runs} runs"] = f"{sum(flags)} of 100"
    noise = calibrated(Poisson(NOMINAL, 0.05), 200, ADD)
    claim = certified_claim(sampled(Gaussian(noise), 0).history, ADD)
    flags = [
        curve_test(sampled(LowNoise(noise), seed), claim, 25_000).violated for seed in range(100)
    ]
    found["Poisson q=0.05, 200 steps, 25000 runs"] = f"{sum(flags)} of 100"
    return found


def alarms() -> dict[str, Any]:
    """How often honest mechanisms at the very edge of their claim are accused."""
    claim = certified_claim(full_batch(Gaussian(SINGLE), 0).history, ADD)
    flat = [
        curve_test(full_batch(Gaussian(SINGLE), seed), claim, 50_000).violated
        for seed in range(1_000)
    ]
    flipped = []
    for seed in range(1_000):
        setting = AuditSetting(Gaussian(SINGLE), FullBatch(NOMINAL), ADD, seed=seed)
        records = _flip()
        flipped.append(
            curve_test(RuleExperiment(Averaged(1.0), records, setting), claim, 20_000).violated
        )
    return {
        "flat clipping, 1000 tests of 50000 runs": int(sum(flat)),
        "averaged clipping, 1000 tests of 20000 runs": int(sum(flipped)),
    }


def _flip() -> Any:
    """The pair that attains averaged clipping's sensitivity, on one coordinate."""
    from winsor_papers.records import LINE, GradientRecords

    z = torch.full((1, 1), 1e6)
    return GradientRecords("flip", -z.expand(NOMINAL, 1) / 100, z[:0], z, LINE)


def tightness() -> dict[str, Any]:
    """Audited lower bounds beside the claims, at delta 1e-5."""
    found: dict[str, Any] = {}
    for epsilon in (1.0, 4.0, 8.0):
        noise = Gaussian(1 / gaussian_mu(epsilon, USUAL_DELTA))
        experiment = full_batch(noise, 0)
        verdict = curve_test(experiment, certified_claim(experiment.history, ADD), 4_000_000)
        found[f"full batch, claimed {epsilon:g}"] = {
            "gaussian": round(verdict.roc.gaussian_epsilon(USUAL_DELTA), 3),
            "clopper_pearson": round(verdict.roc.epsilon(USUAL_DELTA), 3),
            "violated": verdict.violated,
        }
    experiment = sampled(Gaussian(calibrated(Poisson(NOMINAL, 0.05), 200, ADD)), 0)
    history = experiment.history
    verdict = curve_test(experiment, certified_claim(history, ADD), 200_000)
    inverted = measured_epsilon(history, ADD, USUAL_DELTA, verdict.roc.refutes)
    assert inverted is not None
    found["Poisson q=0.05, 200 steps, claimed 4"] = {
        "inversion": round(inverted, 3),
        "clopper_pearson": round(verdict.roc.epsilon(USUAL_DELTA), 3),
        "violated": verdict.violated,
    }
    return found


def one_run() -> dict[str, Any]:
    """A perceptron 784-64-10 at epsilon 8 with 1000 canaries, three seeds."""
    reports = []
    for seed in range(3):
        private, loss = example(epsilon=8.0)
        reports.append(audit_training(private, loss, canaries=1000, seed=seed))
    return {
        "f-DP": [round(report.epsilon_curve, 2) for report in reports],
        "Steinke, Nasr, Jagielski": [round(report.epsilon_pointwise, 2) for report in reports],
        "right of 200 guesses": [report.right for report in reports],
        "violated": sum(report.violated for report in reports),
    }


def published() -> dict[str, Any]:
    """Every published claim with its measured lower bound."""
    from winsor_papers.all_attacks import published_audits

    rows = [run(audit) for audit in published_audits()]
    return {
        row.name: {
            "claimed": round(row.claimed_epsilon, 3),
            "at_least": round(row.lower_bound, 3),
            "verdict": row.verdict,
        }
        for row in rows
    }


def seconds(command: str) -> dict[str, Any]:
    """Wall and processor time of one command. Other load on the machine shows in the first."""
    before, start = _processor(), time.perf_counter()
    words = [sys.executable, "-m", "winsor", "audit", *command.split(), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    audits = json.loads(done.stdout)["audits"]
    return {
        "wall": round(time.perf_counter() - start, 1),
        "processor": round(_processor() - before, 1),
        "load": round(os.getloadavg()[0], 1),
        "exit_code": done.returncode,
        "audits": len(audits),
        "verdicts": dict(Counter(audit["verdict"] for audit in audits)),
    }


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "power": power,
    "alarms": alarms,
    "tightness": tightness,
    "one_run": one_run,
    "published": published,
    **{f"time of {command}": partial(seconds, command) for command in COMMANDS},
}


def main(asked: list[str]) -> None:
    torch.set_num_threads(1)
    logging.getLogger("absl").setLevel(logging.ERROR)
    results = _saved()
    missing = [name for name in PARTS if name not in results]
    for name in list(PARTS) if asked == ["--again"] else asked or missing:
        start = time.process_time()
        found = PARTS[name]()
        print(f"{name} ({time.process_time() - start:.0f} s of processor time)")
        for key, value in found.items():
            print(f"  {key}: {value}", flush=True)
        results = {**_saved(), name: found}  # another process may have done other parts meanwhile
        results["machine"] = {
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }
        save("audit_power", results)


def _saved() -> dict[str, Any]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


if __name__ == "__main__":
    main(sys.argv[1:])

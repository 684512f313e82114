"""Noise: nanoseconds of processor time per element on one core, at a million elements.

Ours includes everything: AES-256 bits, the law, rounding the sum to the lattice, scale and sum. The
others draw and add (``x += std * noise``). Medians over alternating repeats in one process, because
the machine's speed drifts; the ratio to torch's float32 ``normal_`` is what carries over.

    python benchmarks/noise.py [--repeats 31] [--size 1000000] [--out results/noise.json]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from saving import save

from winsor.core.accounting.lattice import bits_for
from winsor.core.noise import kernel, lattice
from winsor.core.noise.laws import gaussian, laplace
from winsor.core.noise.source import NoiseSource
from winsor.gradients import buffers as buffers  # tensors are released below

Run = Callable[[], Any]


def ours(size: int) -> dict[str, Run]:
    key, law, bits = os.urandom(32), gaussian(), bits_for(size)
    gamma = 1.3 * 2.0**-bits
    small, large, ready = np.zeros(size, np.float32), np.zeros(size), np.empty(size)
    runs: dict[str, Run] = {
        "winsor pure, float32": lambda: lattice.release(law, key, 1, 0, bits, gamma, small),
        "winsor pure, float64": lambda: lattice.release(law, key, 1, 0, bits, gamma, large),
        "winsor pure, Laplace": lambda: lattice.release(laplace(), key, 1, 0, bits, gamma, small),
    }
    compiled = kernel.load()
    if compiled is None:
        return runs
    tensor, ahead = torch.zeros(size), NoiseSource(key)
    entry = iter(range(10**9))
    return runs | {
        "winsor kernel, float32": lambda: compiled.release(law, key, 1, 0, bits, gamma, small),
        "winsor kernel, float64": lambda: compiled.release(law, key, 1, 0, bits, gamma, large),
        "winsor kernel, Laplace": lambda: compiled.release(
            laplace(), key, 1, 0, bits, gamma, small
        ),
        "winsor kernel, noise drawn ahead: what the step pays": lambda: compiled.apply(
            ready, gamma, small
        ),
        "winsor source, drawn ahead: the training thread": lambda: ahead.add(
            next(entry), "grad", tensor, 1.3
        ),
    }


def others(size: int) -> dict[str, Run]:
    x, buffer, rng = torch.zeros(size), torch.empty(size), np.random.default_rng()
    flat, wide = x.numpy(), torch.empty(size, dtype=torch.float64)

    def ziggurat() -> None:
        np.add(flat, rng.standard_normal(size, dtype=np.float32) * np.float32(1.3), out=flat)

    return {
        "torch normal_ alone, float32": lambda: buffer.normal_(),
        "torch normal_ and add, float32": lambda: x.add_(buffer.normal_(), alpha=1.3),
        "torch normal_ alone, float64": lambda: wide.normal_(),
        "numpy ziggurat and add, float32": ziggurat,
    }


def opacus(size: int) -> dict[str, Run] | str:
    try:
        generate = importlib.import_module("opacus.optimizers.optimizer")._generate_noise
    except ImportError:
        return "Opacus secure mode: opacus is not installed"
    x, generator, bits = torch.zeros(size), None, "torch's generator: no torchcsprng here"
    try:
        csprng = importlib.import_module("torchcsprng")
        generator, bits = csprng.create_random_device_generator("/dev/urandom"), "torchcsprng"
    except ImportError:
        pass
    return {
        f"Opacus secure mode ({bits})": lambda: x.add_(
            generate(1.3, x, generator=generator, secure_mode=True)
        )
    }


def jax_privacy(size: int) -> dict[str, Run] | str:
    """Release 2.0.0 has no discrete sampler, in the wheel or in its examples; this line changes
    once one does."""
    try:
        version = importlib.metadata.version("jax-privacy")
    except importlib.metadata.PackageNotFoundError:
        return "jax-privacy: not installed"
    return f"jax-privacy {version}: no discrete sampler in this release, nothing to time"


def measure(runs: dict[str, Run], size: int, repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.thread_time_ns()
            run()
            times[name].append((time.thread_time_ns() - start) / size)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--size", type=int, default=1_000_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs, remarks = ours(arguments.size) | others(arguments.size), []
    for found in (opacus(arguments.size), jax_privacy(arguments.size)):
        if isinstance(found, str):
            remarks.append(found)
        else:
            runs |= found
    result = measure(runs, arguments.size, arguments.repeats)
    reference = result["torch normal_ alone, float32"]
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, size {arguments.size}")
    for name, value in result.items():
        print(f"{value:7.2f} ns  {value / reference:5.2f} x torch normal_  {name}")
    for remark in remarks:
        print(remark)
    save("noise", {"ns_per_element": result, "remarks": remarks, "load": os.getloadavg()[0]})


if __name__ == "__main__":
    main()

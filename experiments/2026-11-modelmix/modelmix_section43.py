"""Section 4.3 of ModelMix: printed, published formula, and certified, with the time they take.

n = 50,000, delta = 1e-5, q = 0.02, T = 5000, c = 20 averaged over 1000; Gaussian noise such that
DP-SGD has epsilon 200 by fractional Renyi orders.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/modelmix_section43.py

Writes benchmarks/results/modelmix_section43.json. Times are of one cold run in one process, imports
excluded; `excess` is what the certified bound costs over the supremum it bounds, measured as the
fall of epsilon when the tables are refined fourfold.
"""

from __future__ import annotations

import time

from saving import save
from winsor_reproductions.modelmix.section43 import (
    PRINTED,
    Section43,
    section_43_claims,
    section_43_noise,
)

from winsor.accounting import account
from winsor.accounting.widened import gaussian, moments

# (tau/eta, p) -> certified epsilon in the table of docs/modelmix.md
EXPECTED = {
    (0.3, 1): 32.0, (0.3, 25): 4.95, (0.3, 100): 4.32,
    (0.15, 1): 43.2, (0.15, 25): 8.27, (0.15, 100): 7.25,
    (0.075, 1): 62.0, (0.075, 25): 16.6, (0.075, 100): 14.6,
}  # fmt: skip

Cells = dict[tuple[float, int], float]


def certified(setting: Section43, noise: float) -> Cells:
    """The certified epsilon of every cell."""
    return {
        (w, p): account([(setting.event(w, p, noise), setting.steps)], setting.delta).epsilon
        for w in setting.widths
        for p in setting.coordinates
    }


def refined(setting: Section43, noise: float) -> Cells:
    """The same with cells and shifts four times as fine."""
    caches = (moments.log_moments, moments.rates, gaussian._amplified)
    step, ratio = moments._STEP, moments._SHIFT_RATIO
    moments._STEP, moments._SHIFT_RATIO = step / 4, ratio**0.25
    try:
        for cache in caches:
            cache.cache_clear()
        return certified(setting, noise)
    finally:
        moments._STEP, moments._SHIFT_RATIO = step, ratio
        for cache in caches:
            cache.cache_clear()


def main() -> None:
    setting = Section43()
    start = time.perf_counter()
    noise = section_43_noise(setting)
    claims = section_43_claims(setting)
    published_seconds = time.perf_counter() - start
    start = time.perf_counter()
    bounds = certified(setting, noise)
    plain = account([(setting.event(0.0, 1, noise), setting.steps)], setting.delta).epsilon
    certified_seconds = time.perf_counter() - start
    fine = refined(setting, noise)

    rows = []
    print(f"noise multiplier {noise:.4f}; DP-SGD: 200 by Renyi orders, {plain:.1f} certified")
    print("tau/eta    p   printed  published      certified  in the docs        excess")
    for (w, p), printed in PRINTED.items():
        claim, bound = claims[w, p].published_epsilon, bounds[w, p]
        off, away = claim / printed - 1, bound / EXPECTED[w, p] - 1
        excess = bound / fine[w, p] - 1
        rows.append(
            {"tau_over_eta": w, "p": p, "printed": printed, "published_not_certified": claim,
             "published_over_printed": off, "certified": bound, "privacy_md": EXPECTED[w, p],
             "certified_over_privacy_md": away, "excess": excess}
        )  # fmt: skip
        print(
            f"{w:7.3f} {p:4d} {printed:9.1f} {claim:8.2f} ({off:+.1%}) {bound:8.2f} ({away:+.1%})"
            f" {EXPECTED[w, p]:8.2f} {excess:+10.2%}"
        )
    print(f"published {published_seconds:.1f} s, certified {certified_seconds:.1f} s")
    result = {
        "noise_multiplier": noise, "plain_certified": plain, "rows": rows,
        "published_seconds": published_seconds, "certified_seconds": certified_seconds,
    }  # fmt: skip
    save("modelmix_section43", result)


if __name__ == "__main__":
    main()

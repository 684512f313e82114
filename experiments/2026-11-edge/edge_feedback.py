"""What error feedback could at most feed back on the beds of `edge.py`, by its own account.

    .venv/bin/python benchmarks/edge_feedback.py        # seconds; benchmarks/results/

Error feedback keeps what clipping took away, e_{t+1} = e_t + sum g_i - released, and adds
clip(e_t, D) to the next sum. e_t has no noise, and one row without a bound on its gradient moves it
anywhere: so the row moves clip(e_t, D) by up to 2 D in every step after it was first drawn, drawn
again or not. These steps are not sampled. With noise of deviation nm C they alone are T Gaussian
releases of multiplier nm C / (2 D), which fit the budget only if

    D / C <= nm / (2 m_T),      m_T the multiplier that T unsampled steps need

and that leaves nothing for the rows themselves. Beside the section in docs/heavy-tail-edge.md.
"""

from __future__ import annotations

from dp_accounting.dp_event import GaussianDpEvent
from edge import DELTA, EPSILON, noise
from edge_beds import Bed, beds
from saving import save

import winsor
from winsor.accounting import calibrate


def ceiling(bed: Bed) -> dict[str, float]:
    n = len(bed.task(101).train[0])
    sampled = noise(n, bed.batch, bed.steps, False)
    relation = winsor.Neighbouring.ADD_OR_REMOVE_ONE
    whole = calibrate.noise_multiplier(GaussianDpEvent, bed.steps, EPSILON, DELTA, relation)
    return {
        "rows": n,
        "batch": bed.batch,
        "steps": bed.steps,
        "noise_multiplier": sampled,
        "unsampled_noise_multiplier": whole,
        "largest_feedback": sampled / (2 * whole),
    }


if __name__ == "__main__":
    found = {bed.name: ceiling(bed) for bed in beds().values()}
    save("edge_feedback", {"epsilon": EPSILON, "delta": DELTA, "beds": found})
    for name, one in found.items():
        print(f"{name:10} at most {one['largest_feedback']:.3f} C for {one['batch']} rows")

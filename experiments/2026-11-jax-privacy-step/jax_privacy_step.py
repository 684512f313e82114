"""A private step of jax-privacy against a plain one of jax, both compiled, one core.

    .venv/bin/python benchmarks/jax_privacy_step.py       # three minutes, the machine to itself

jax and jax-privacy get an environment of their own in build/peers (`docs/peer_code.py` shares it).
Everything is on one core, as compiled jax would otherwise use all of them and torch's figures one.
Plain and private steps take turns; medians. Writes benchmarks/results/jax_privacy_step.json. The
ratios are those of another framework to itself: its plain steps are not torch's, and are saved too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 15.0
RATE, CLIP, NOISE = 0.01, 1.0, 1.0


def convolved(x: Any, weight: Any) -> Any:
    from jax import lax

    return lax.conv_general_dilated(
        x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def grouped(x: Any, groups: int, scale: Any, shift: Any) -> Any:
    """GroupNorm over (height, width, channels of a group)."""
    n, height, width, channels = x.shape
    parts = x.reshape(n, height, width, groups, channels // groups)
    mean = parts.mean((1, 2, 4), keepdims=True)
    variance = parts.var((1, 2, 4), keepdims=True)
    return ((parts - mean) / (variance + 1e-5) ** 0.5).reshape(x.shape) * scale + shift


def pooled(x: Any) -> Any:
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels).max((2, 4))


def cnn(p: dict[str, Any], x: Any) -> Any:
    import jax

    h = pooled(jax.nn.relu(grouped(convolved(x, p["c1"]) + p["b1"], 4, p["s1"], p["t1"])))
    h = pooled(jax.nn.relu(grouped(convolved(h, p["c2"]) + p["b2"], 8, p["s2"], p["t2"])))
    return h.reshape(len(x), -1) @ p["w"] + p["b"]


def mlp(p: dict[str, Any], x: Any) -> Any:
    import jax

    return jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def linear(p: dict[str, Any], x: Any) -> Any:
    return x @ p["w"] + p["b"]


TASKS: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "linear 784-10": (linear, {"w": (784, 10), "b": (10,)}, (128, 784)),
    "MLP 784-128-10": (
        mlp,
        {"w1": (784, 128), "b1": (128,), "w2": (128, 10), "b2": (10,)},
        (128, 784),
    ),
    "CNN 28x28": (
        cnn,
        {"c1": (3, 3, 1, 16), "b1": (16,), "s1": (16,), "t1": (16,)}
        | {"c2": (3, 3, 16, 32), "b2": (32,), "s2": (32,), "t2": (32,)}
        | {"w": (32 * 7 * 7, 10), "b": (10,)},
        (256, 28, 28, 1),
    ),
}


def steps(name: str) -> dict[str, Callable[[], None]]:
    """A plain and a private step of one model, compiled as a whole."""
    import jax
    import jax_privacy
    import optax
    from jax import numpy as jnp
    from jax_privacy import noise_addition

    model, shapes, rows = TASKS[name]
    keys = iter(jax.random.split(jax.random.key(0), len(shapes) + 2))
    params = {k: 0.05 * jax.random.normal(next(keys), shape) for k, shape in shapes.items()}
    x = jax.random.normal(next(keys), rows)
    y = jax.random.randint(next(keys), (rows[0],), 0, 10)

    def loss(p: Any, rows: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(model(p, rows), labels).mean()

    clipped = jax_privacy.clipped_grad(
        loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), normalize_by=rows[0]
    )
    noise = noise_addition.gaussian_privatizer(
        stddev=NOISE * clipped.sensitivity(), prng_key=jax.random.key(1)
    )

    @jax.jit
    def plain(p: Any, state: Any) -> Any:
        gradient = jax.grad(loss)(p, x, y)
        return jax.tree.map(lambda w, g: w - RATE * g, p, gradient), state

    @jax.jit
    def private(p: Any, state: Any) -> Any:
        noisy, state = noise.update(clipped(p, x, y), state)
        return jax.tree.map(lambda w, g: w - RATE * g, p, noisy), state

    def repeated(step: Any) -> Callable[[], None]:
        at = [params, noise.init(params)]

        def once() -> None:
            at[:] = step(*at)
            jnp.asarray(at[0]["b" if "b" in at[0] else "b2"]).block_until_ready()

        return once

    return {"plain": repeated(plain), "private": repeated(private)}


def measured() -> list[dict[str, Any]]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = []
    for name in TASKS:
        contenders = steps(name)
        times: dict[str, list[float]] = {key: [] for key in contenders}
        for step in contenders.values():
            for _ in range(3):
                step()  # compiles
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(times["plain"]) < 7:
            for key, step in contenders.items():
                for _ in range(10):
                    begin = time.perf_counter()
                    step()
                    times[key].append(time.perf_counter() - begin)
        plain, private = (statistics.median(times[key]) for key in ("plain", "private"))
        row = {"model": name, "plain_ms": 1e3 * plain, "step_ms": 1e3 * private}
        rows.append(row | {"ratio": private / plain, "steps": len(times["plain"])})
    return rows


def main() -> None:
    if "--inside" in sys.argv:
        print(json.dumps(measured()))
        return
    sys.path.insert(0, str(ROOT / "docs"))
    from peer_code import PEERS, environment, versions
    from saving import save

    needs = PEERS["coming-from-jax-privacy.md"]
    python = environment("coming-from-jax-privacy", needs)
    words = [str(python), __file__, "--inside"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    for row in rows:
        print(f"{row['model']:<18}{row['ratio']:>8.2f}   plain {row['plain_ms']:.2f} ms")
    result = {"versions": versions(python, needs), "load": os.getloadavg(), "rows": rows}
    print(f"written to {save('jax_privacy_step', result)}")


if __name__ == "__main__":
    main()

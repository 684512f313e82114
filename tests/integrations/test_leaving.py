"""A process that trained privately ends without a word."""

import os
import subprocess
import sys
from pathlib import Path

import tiny_transformers as tiny

SCRIPT = """
import sys
sys.path.insert(0, {support!r})
import tiny_transformers as tiny
trainer = tiny.trainer(args=tiny.arguments({out!r}, max_steps=2, logging_strategy="no"))
trainer.train()
print("ended")
"""


def test_the_interpreter_leaves_in_silence(tmp_path):
    """Noise is drawn ahead in a thread; what holds it must survive the end of the interpreter."""
    code = SCRIPT.format(support=str(Path(tiny.__file__).parent), out=str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[-1] == "ended"
    assert "Exception ignored" not in ended.stderr and "Traceback" not in ended.stderr

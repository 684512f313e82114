"""Two ranks of a `PrivateTrainer` (torchrun, gloo) release what one process does."""

import os
import subprocess
import sys
from pathlib import Path

import tiny_transformers as tiny
import torch

SCRIPT = '''
import sys, torch
sys.path.insert(0, {support!r})
import tiny_transformers as tiny
if __name__ == "__main__":
    args = tiny.arguments({out!r}, per_device_train_batch_size=2, ddp_backend="gloo",
                          save_strategy="steps", save_steps=2)
    def build():
        return tiny.trainer(tiny.gpt(dropout=0.1), args, privacy=tiny.privacy(seed=6))
    trainer = build()
    trainer.train()
    weights = {{k: v.clone() for k, v in trainer.model.state_dict().items()}}
    resumed = build()
    resumed.train(resume_from_checkpoint={out!r} + "/checkpoint-2")
    again = all(torch.equal(weights[k], v) for k, v in resumed.model.state_dict().items())
    plain = tiny.trainer(tiny.gpt(), tiny.arguments({out!r}, per_device_train_batch_size=2,
                         ddp_backend="gloo"), privacy=tiny.privacy(seed=6))
    plain.train()
    torch.save({{"weights": plain.model.state_dict(), "spent": plain.spent().epsilon,
                "again": again, "steps": resumed.spent().steps}},
               f"{out}/rank{{args.process_index}}.pt")
    torch.distributed.destroy_process_group()
'''  # fmt: skip


def test_two_ranks_release_what_one_does(tmp_path):
    script = tmp_path / "run.py"
    support = str(Path(tiny.__file__).parent)
    script.write_text(SCRIPT.format(support=support, out=str(tmp_path)))
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(script)],
        capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    alone = tiny.trainer(privacy=tiny.privacy(seed=6))  # 4 x 3 rows a step there, 2 x 3 x 2 here
    alone.train()
    for name, weight in alone.model.state_dict().items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        assert torch.allclose(first["weights"][name], weight, rtol=1e-3, atol=1e-4), name
    assert first["spent"] == second["spent"] == alone.spent().epsilon
    assert first["again"] and second["again"] and first["steps"] == 4  # resumed, bit by bit

"""A run of the command line does without torch's compiler, and its optimiser does what it did."""

import subprocess
import sys

import torch
from torch.optim import SGD, Optimizer

from winsor.app.runs.no_compiler import _answer, leave_out_compiler

FRESH = """
import sys, torch
from winsor.app.runs.no_compiler import leave_out_compiler
assert leave_out_compiler() >= 10
weight = torch.ones(2, requires_grad=True)
optimiser = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
(weight * 2).sum().backward()
optimiser.step()
optimiser.zero_grad()
optimiser.load_state_dict(optimiser.state_dict())
assert weight.tolist() == [0.0, 0.0]
assert weight.grad is None and torch.is_grad_enabled() and weight.is_leaf
adam = torch.optim.Adam([weight], lr=0.5)
weight.grad = torch.ones(2)
adam.step()
assert torch.allclose(weight, torch.full((2,), -0.5))
assert "torch._dynamo" not in sys.modules
import torch._dynamo
assert leave_out_compiler() == 0
"""


def test_no_compiler_is_loaded_in_a_process_of_our_own():
    subprocess.run([sys.executable, "-c", FRESH], check=True)


def test_only_what_torch_wraps_is_answered_for():
    assert not _answer(SGD.step) or SGD.step.__code__.co_filename.endswith("_compile.py")
    assert not _answer(leave_out_compiler)
    assert isinstance(SGD([torch.zeros(1, requires_grad=True)], lr=1.0), Optimizer)

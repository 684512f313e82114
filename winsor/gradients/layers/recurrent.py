"""`nn.RNN`, `nn.LSTM` and `nn.GRU`, taken apart into linear operations that an engine can record.

The input weights act on all time steps at once, the recurrent weights once per step; each is one
recorded linear operation, so per-sample gradients are sums over time of outer products, as for a
linear layer on a sequence. Dropout between layers is drawn once, as in the plain module.

Difference from the plain module: a Python loop over time in place of one fused kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from winsor.core.contract import UnsupportedModel
from winsor.gradients.layers.layer import RecordedLinear

State = tuple[Tensor, ...]  # (h,) or (h, c), each (n, features)
Recur = Callable[[Tensor], Tensor]


def recurrent_forward(
    module: nn.RNNBase, linear: RecordedLinear, x: Tensor, hx: Any = None
) -> tuple[Tensor, Any]:
    """Run `module.forward` with recorded linear operations."""
    if isinstance(x, PackedSequence) or x.dim() != 3:
        raise UnsupportedModel(
            f"the input of {type(module).__name__} must be one padded tensor (batch, length, "
            "features). Got a packed or unbatched sequence: pad it, and mask the losses."
        )
    h = x if module.batch_first else x.transpose(0, 1)  # (n, T, features)
    first, directions = _first_states(module, h, hx), 2 if module.bidirectional else 1
    last: list[State] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            state = tuple(s[layer * directions + direction] for s in first)
            out, state = _run(module, linear, h, state, layer, direction)
            outputs.append(out)
            last.append(state)
        h = torch.cat(outputs, dim=-1) if directions == 2 else outputs[0]
        if module.dropout and module.training and layer + 1 < module.num_layers:
            h = F.dropout(h, module.dropout)
    final = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    out = h if module.batch_first else h.transpose(0, 1)
    return out, final if isinstance(module, nn.LSTM) else final[0]


def _first_states(module: nn.RNNBase, x: Tensor, hx: Any) -> State:
    if hx is not None:
        return tuple(hx) if isinstance(module, nn.LSTM) else (hx,)
    count = module.num_layers * (2 if module.bidirectional else 1)
    h = x.new_zeros(count, len(x), module.proj_size or module.hidden_size)
    if not isinstance(module, nn.LSTM):
        return (h,)
    return h, x.new_zeros(count, len(x), module.hidden_size)


def _run(
    module: nn.RNNBase, linear: RecordedLinear, x: Tensor, state: State, layer: int, direction: int
) -> tuple[Tensor, State]:
    """Run one layer in one direction over all time steps."""
    suffix = f"l{layer}{'_reverse' if direction else ''}"
    bias = (f"bias_ih_{suffix}", f"bias_hh_{suffix}") if module.bias else (None, None)

    def recur(h: Tensor) -> Tensor:
        return linear(h, f"weight_hh_{suffix}", bias[1])

    inputs = linear(x, f"weight_ih_{suffix}", bias[0]).unbind(1)
    order = range(len(inputs) - 1, -1, -1) if direction else range(len(inputs))
    outputs: list[Tensor] = [x] * len(inputs)
    for t in order:
        state = _cell(module, inputs[t], state, recur)
        if module.proj_size:
            state = (linear(state[0], f"weight_hr_{suffix}", None), *state[1:])
        outputs[t] = state[0]
    return torch.stack(outputs, dim=1), state


def _cell(module: nn.RNNBase, given: Tensor, state: State, recur: Recur) -> State:
    if isinstance(module, nn.LSTM):
        i, f, g, o = (given + recur(state[0])).chunk(4, dim=-1)
        c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    if isinstance(module, nn.GRU):
        (ri, zi, ni), (rh, zh, nh) = given.chunk(3, dim=-1), recur(state[0]).chunk(3, dim=-1)
        z = torch.sigmoid(zi + zh)
        new = torch.tanh(ni + torch.sigmoid(ri + rh) * nh)
        return ((1 - z) * new + z * state[0],)
    activation = torch.tanh if module.mode == "RNN_TANH" else torch.relu
    return (activation(given + recur(state[0])),)

"""SGD on gradients estimated by a Kalman filter whose noise is known, because it is ours.

    z_t = x_t + N(0, R_t),  R_t the public variance of the released noise;  x_t walks at random
    s_t = decay s_{t-1} + (1 - decay) |z_t - m_{t-1}|^2 / d          what is seen of the innovation
    K_t = (s_t - R_t) / s_t, kept in [least, 1]                      one gain for each tensor
    m_t = m_{t-1} + K_t (z_t - m_{t-1}),    w -= lr m_t

When all that the innovation shows is noise, the gain falls to ``least`` and the estimate stands;
when the gradient moves, the gain rises by itself. With a constant gain this is momentum.

Guarantee
---------
Post-processing of released gradients and public numbers.

References
----------
Zhang, Bu, Balle, Hong, Razaviyayn, Mirrokni: DiSK: Differentially private optimizer with simplified
Kalman filter for noise reduction, 2024. Theirs takes gradients at two points of each row and a
constant gain; here one gradient as every rule releases it, and a gain from the known noise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from winsor.core.checks import positive, probability
from winsor.training.optimisers import NoiseAware


class KalmanSGD(NoiseAware):
    """SGD with a scalar Kalman gain per tensor. `winsor.make_private` tells it its noise.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = KalmanSGD([weight], lr=0.5)
    >>> optimizer.note_noise(0.1)
    >>> weight.grad = torch.tensor([3.0, -3.0])
    >>> optimizer.step()
    >>> [round(w, 2) for w in weight.tolist()]
    [-1.5, 1.5]
    """

    def __init__(self, params: Any, lr: float, least: float = 0.05, decay: float = 0.9) -> None:
        positive("lr", lr)
        probability("least", least)
        probability("decay", decay)
        super().__init__(params, {"lr": lr, "least": least, "decay": decay})

    def _update(self, weight: Tensor, group: dict[str, Any], variance: float) -> None:
        state = self.state[weight]
        if not state:
            state["estimate"], state["seen"], state["weight"] = torch.zeros_like(weight), 0.0, 0.0
        innovation = weight.grad - state["estimate"]
        decay = group["decay"]
        state["seen"] = decay * state["seen"] + (1 - decay) * float(innovation.square().mean())
        state["weight"] = decay * state["weight"] + (1 - decay)
        seen = state["seen"] / state["weight"]
        gain = 1 - variance / seen if seen > 0 else 0.0
        state["estimate"].add_(innovation, alpha=min(max(gain, group["least"]), 1.0))
        weight.add_(state["estimate"], alpha=-group["lr"])

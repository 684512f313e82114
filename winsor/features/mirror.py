"""What an image and its mirror image share: half as many features, where left and right mean alike.

    f(x)         scattering coefficients of an image, averages centred (`scattering.py`)
    P            angles and columns in the order of the mirrored image: f(mirrored x) = P f(x)
    shared       (f + P f) / 2, of which the left half says everything

A linear model of the shared part gives an image and its mirror image the same scores, as one that
is trained on both would have to learn; noise in the other half of the weights is saved, which would
otherwise be spent on what cannot help. Whether left and right mean alike is for the user to know:
they do for photographs, not for digits.

f(mirrored x) = P f(x) up to the error of thinning bands that are not quite limited: of norm below
a hundredth of the coefficients'. Nothing hangs on it but accuracy.

Guarantee
---------
A fixed transform of each row by itself: adding one record adds one feature row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from winsor.core.checks import whole
from winsor.core.contract import ConfigurationError


@dataclass(frozen=True)
class MirrorShared:
    """(n, colours x channels, h, w) of `Scattering(J, L, groups=None, centred=True)` ->
    (n, colours x channels, h, w/2), w/2 being rounded up.

    Examples
    --------
    >>> MirrorShared(J=2, L=8)(torch.rand(3, 243, 8, 8)).shape
    torch.Size([3, 243, 8, 4])
    """

    J: int = 2
    L: int = 8

    def __post_init__(self) -> None:
        whole("J", self.J)
        whole("L", self.L)

    @property
    def channels(self) -> list[int]:
        """Where the mirrored image has each channel of one colour."""
        centre = int(self.L - self.L / 2 - 1)  # kymatio's angle number t is (centre - t) pi / L
        turned = [(2 * centre - angle) % self.L for angle in range(self.L)]
        order = [0]
        for scale in range(self.J):
            order += [1 + scale * self.L + angle for angle in turned]
        first = len(order)
        for scale in range(self.J - 1):
            finer = (self.J - 1 - scale) * self.L  # channels behind one angle of this scale
            for angle in turned:
                for other in range(self.J - 1 - scale):
                    order += [first + angle * finer + other * self.L + inner for inner in turned]
            first += self.L * finer
        return order

    def __call__(self, features: Tensor) -> Tensor:
        order = self.channels
        if features.dim() != 4 or features.shape[1] % len(order):
            raise ConfigurationError(
                f"features must be (rows, colours x {len(order)}, height, width). Got "
                f"{tuple(features.shape)} instead."
            )
        colours = features.shape[1] // len(order)
        index = torch.tensor([colour * len(order) + c for colour in range(colours) for c in order])
        half = -(-features.shape[3] // 2)
        return (features[..., :half] + features.flip(3)[:, index, :, :half]) / 2

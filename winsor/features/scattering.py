"""Scattering coefficients: two layers of fixed wavelets, a modulus after each, then averages.

    (n, h, w) -> (n, 1 + J L + L^2 J (J - 1)/2, h/2^J, w/2^J)
    J = 2, 8 angles:  1 + 16 + 64 = 81 channels per colour

normalised per image in groups of channels (group normalisation without parameters), so that no
statistics of the data are needed. ``groups=None`` leaves the coefficients as they are, for those
who release channel statistics with noise (`private_norm.py`).

Averages are taken around every 2^J-th pixel, the first of the image among them, as kymatio has it.
``centred=True`` moves these places by (2^J - 1)/2 pixels, which the Fourier transform can do with
halves of a pixel too: they then lie evenly within the image, and the coefficients of a mirrored
image are those of the image in another order (`mirror.py`).

The filters are kymatio's; the transform is ours. All angles of a scale go through one batched
Fourier transform, and the last average, which keeps one value in 4^J, is one matrix product per
scale instead of a transform there and back per path: the same numbers in a fraction of the time.

Guarantee
---------
A fixed transform of each image by itself: adding one record adds one feature row.

Cost
----
Needs the package kymatio: ``pip install 'winsor[scattering]'``. Compute once and keep (``cache``).

References
----------
Oyallon et al.: Scattering networks for hybrid representation learning, PAMI 2018. Tramer and Boneh:
Differentially private learning needs better features (or much more data), ICLR 2021; ModelMix
(paper 5), section 5.1, trains on them.

The mirror image
----------------
`MirrorShared`: f(mirrored x) = P f(x), P being angles and columns in the order of the mirrored
image, so (f + P f) / 2 is what an image and its mirror image share, of which the left half says
everything. A linear model of it gives both the same scores, as one that is trained on both would
have to learn; noise in the other half of the weights is saved. Whether left and right mean alike is
for the user to know: they do for photographs, not for digits. P f(x) is exact up to the error of
thinning bands that are not quite limited (norm below a hundredth); only accuracy hangs on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from winsor.core.checks import positive, whole
from winsor.core.contract import ConfigurationError
from winsor.features.public import kept

CHANNELS, GROUPS = 81, 27
CHUNK = 25


@dataclass(frozen=True)
class Scattering:
    """Scattering coefficients of images, the last two axes being height and width.

    Parameters
    ----------
    J, L
        Scales (the output is 2^J times smaller) and angles.
    groups
        Groups of channels per colour that are normalised per image; None for none.
    cache
        A folder in which results are kept under the content of the images.
    centred
        Places of the averages lie evenly within the image.
    floor
        Logarithms of the coefficients are taken before they are normalised, this much having been
        added: it brings coefficients of all sizes to alike spreads. None for none. 0.001 suits
        images in [0, 1].
    """

    J: int = 2
    L: int = 8
    groups: int | None = GROUPS
    cache: str | Path | None = None
    centred: bool = False
    floor: float | None = None

    def __post_init__(self) -> None:
        whole("J", self.J)
        whole("L", self.L)
        if self.floor is not None:
            positive("floor", self.floor)
        if self.groups is not None and self.channels % whole("groups", self.groups):
            raise ConfigurationError(
                f"groups must divide the {self.channels} channels of a colour. Got "
                f"{self.groups!r} instead."
            )

    @property
    def channels(self) -> int:
        """Number of channels of one colour."""
        return 1 + self.J * self.L + self.L**2 * self.J * (self.J - 1) // 2

    def __call__(self, images: Tensor) -> Tensor:
        """(n, h, w) -> (n, channels, h', w'); colours multiply the channels."""
        label = f"scattering-J{self.J}-L{self.L}-groups{self.groups}"
        label += "-centred" if self.centred else ""
        label += "" if self.floor is None else f"-floor{self.floor:g}"
        return kept(label, self._compute, images, self.cache)

    def _compute(self, images: Tensor) -> Tensor:
        make = functools.partial(transform_with, J=self.J, L=self.L, centred=self.centred)
        return _features(images, self.groups, make, self.floor)


def scattering_features(images: Tensor, groups: int | None = GROUPS) -> Tensor:
    """Compute (n, 81, h/4, w/4) of images (n, h, w), or (n, 81 colours, h/4, w/4) of (n, colours,
    h, w)."""
    return _features(images, groups, transform_of)


@torch.no_grad()
def _features(
    images: Tensor, groups: int | None, make: Callable[..., Any], floor: float | None = None
) -> Tensor:
    if images.dim() not in (3, 4):
        raise ConfigurationError(
            "images must be (rows, height, width) or (rows, colours, height, width). Got "
            f"{tuple(images.shape)} instead."
        )
    transform = make(tuple(images.shape[-2:]))
    parts = []
    for part in images.split(CHUNK):
        found = transform(part.contiguous())  # (n, 81, h', w') or (n, colours, 81, h', w')
        parts.append(found.flatten(1, 2) if images.dim() == 4 else found)
    features = torch.cat(parts)
    if floor is not None:
        features = features.clamp_min_(0).add_(floor).log_()
    if groups is None:
        return features
    colours = images.shape[1] if images.dim() == 4 else 1
    return F.group_norm(features, groups * colours)


def transform_of(shape: tuple[int, ...]) -> Any:
    """Return the transform with two scales and eight angles for images of this height and width."""
    return transform_with(shape, J=2, L=8)


@functools.lru_cache(maxsize=8)
def transform_with(shape: tuple[int, ...], J: int, L: int, centred: bool = False) -> Transform:
    """Return the transform (..., h, w) -> (..., channels, h', w') of images of this height and
    width."""
    try:
        from kymatio.scattering2d.filter_bank import filter_bank
        from kymatio.scattering2d.utils import compute_padding
    except ImportError as error:
        raise ConfigurationError(
            "scattering features need the filters of kymatio. Got no such package instead. "
            "Install it: pip install 'winsor[scattering]'."
        ) from error
    if min(shape) < 2**J:
        raise ConfigurationError(
            f"images must be at least {2**J} pixels wide and high for J = {J}. Got {shape} instead."
        )
    padded = compute_padding(*shape, J)
    moved = (2**J - 1) / 2 if centred else 0.0
    return Transform(J, L, shape, padded, filter_bank(*padded, J, L), moved)


class Transform:
    """The two layers, for images of one size, as tensors."""

    def __init__(
        self, J: int, L: int, shape: tuple[int, ...], padded: tuple[int, int], bank: Any,
        moved: float = 0.0,
    ) -> None:  # fmt: skip
        self.J, self.L = J, L
        more = [(p - s) // 2 for s, p in zip(shape, padded, strict=True)]
        rest = [(p - s + 1) // 2 for s, p in zip(shape, padded, strict=True)]
        self._pad = (more[1], rest[1], more[0], rest[0])
        self._wavelets = {
            (j, level): torch.stack(
                [
                    torch.from_numpy(np.asarray(psi["levels"][level], dtype=np.float32).copy())
                    for psi in bank["psi"]
                    if psi["j"] == j
                ]
            ).reshape(L, *(side >> level for side in padded))
            for j in range(J)
            for level in range(min(j + 1, max(J - 1, 1)))
        }
        low_pass = [np.asarray(bank["phi"]["levels"][level]).squeeze() for level in range(J)]
        self._averages = [
            _average(spectrum, 1 << (J - level), moved / 2**level)
            for level, spectrum in enumerate(low_pass)
        ]
        self._out = tuple((side >> J) - 2 for side in padded)

    def __call__(self, images: Tensor) -> Tensor:
        lead = images.shape[:-2]
        flat = images.reshape(-1, 1, *images.shape[-2:]).float()
        padded = F.pad(flat, self._pad, mode="reflect")
        n = len(flat)
        spectrum = torch.fft.fft2(padded)  # (n, 1, H, W)
        first, second = [self._averaged(padded, 0)], []
        for one in range(self.J):
            waves = self._layer(spectrum, self._wavelets[one, 0], one)  # (n, L, H', W')
            first.append(self._averaged(waves, one))
            if one + 1 == self.J:
                continue
            inner = torch.fft.fft2(waves).flatten(0, 1).unsqueeze(1)  # (n L, 1, H', W')
            paths = []
            for two in range(one + 1, self.J):
                found = self._layer(inner, self._wavelets[two, one], two - one)
                paths.append(self._averaged(found, two).reshape(n, self.L, self.L, *self._out))
            second.append(torch.cat(paths, dim=2).flatten(1, 2))
        found = torch.cat([*first, *second], dim=1)
        return found.reshape(*lead, *found.shape[1:])

    @staticmethod
    def _layer(spectrum: Tensor, wavelets: Tensor, halvings: int) -> Tensor:
        """|x * psi| for every angle, every 2^halvings-th value along each axis."""
        k = 1 << halvings
        h, w = (side // k for side in wavelets.shape[-2:])
        pairs = torch.view_as_real(spectrum)  # filters are real: half the products of complex ones
        folded = pairs.new_zeros(len(pairs), len(wavelets), h, w, 2)
        for down in range(k):  # the mean over aliases is the spectrum of the thinned values
            for across in range(k):
                place = (slice(down * h, (down + 1) * h), slice(across * w, (across + 1) * w))
                folded.addcmul_(pairs[:, :, *place], wavelets[:, *place].unsqueeze(-1))
        found = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(folded)))
        real, imaginary = found.unbind(-1)
        return torch.addcmul(real * real, imaginary, imaginary).sqrt_() / k**2

    def _averaged(self, values: Tensor, level: int) -> Tensor:
        found = values.flatten(-2) @ self._averages[level]
        return found.reshape(*values.shape[:2], *self._out)


def _average(low_pass: NDArray[Any], step: int, moved: float = 0.0) -> Tensor:
    """The low-pass filter (given by its spectrum) at every step-th place, borders left out."""
    h, w = low_pass.shape
    down, across = (np.exp(2j * np.pi * np.fft.fftfreq(side) * moved) for side in (h, w))
    kernel = np.fft.ifft2(low_pass * np.outer(down, across)).real
    rows, columns = np.arange(0, h, step)[1:-1], np.arange(0, w, step)[1:-1]
    down = (rows[None, :] - np.arange(h)[:, None]) % h  # (from, to)
    across = (columns[None, :] - np.arange(w)[:, None]) % w
    matrix = kernel[down[:, None, :, None], across[None, :, None, :]]
    return torch.from_numpy(matrix.reshape(h * w, len(rows) * len(columns)).astype(np.float32))


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
        """Numbers that the channels of one colour have in the mirrored image."""
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

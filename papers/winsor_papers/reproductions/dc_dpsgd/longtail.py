"""Long-tailed versions of a data set: the profiles of paper 1.

    rows of class j   n_j = n_max * ratio^(-j / (classes - 1)),                  ratio = 100

The profile with n_max = 5000 is the one that Appendix G.1 lists for CIFAR-10-HT (up to one row).
The loss that paper 1 trains them with is `winsor.training.losses.LdamDrw`; the class counts that it
reads are public by construction, since the *profile* was chosen by us, not counted."""

from __future__ import annotations

from dataclasses import replace

import torch

from winsor.core.contract import ConfigurationError
from winsor_papers.reproductions.dc_dpsgd.images import Images


def long_tailed(images: Images, profile: tuple[int, ...]) -> Images:
    """The first n_j training rows of each class j; the test rows stay balanced."""
    kept = torch.zeros(len(images.y), dtype=torch.bool)
    for label, count in enumerate(profile):
        (positions,) = torch.nonzero(images.y == label, as_tuple=True)
        if len(positions) < count:
            raise ConfigurationError(
                f"class {label} of {images.name} must have at least {count} rows for this profile. "
                f"Got {len(positions)} instead. Lower the largest class."
            )
        kept[positions[:count]] = True
    return replace(images, name=f"{images.name}-HT", x=images.x[kept], y=images.y[kept])

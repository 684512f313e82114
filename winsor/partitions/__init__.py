"""Tables larger than a machine: bounded sums of each partition, one release on the driver.

source.py     partitions: pyarrow datasets out of core, loaders over any map (a pool, Dask)
mean.py       the clipped mean
moments.py    means and second moments of bounded rows: all that least squares needs
"""

from __future__ import annotations

from winsor.partitions.mean import clipped_mean
from winsor.partitions.moments import Moments, second_moments
from winsor.partitions.source import Partitions

__all__ = ["Moments", "Partitions", "clipped_mean", "second_moments"]

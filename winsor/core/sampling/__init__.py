"""How rows are drawn (`samplers`, the only home of q) and loaded (`feed`)."""

from winsor.core.sampling.samplers import FixedSize, FullBatch, Indices, Poisson, Sampler

__all__ = ["FixedSize", "FullBatch", "Indices", "Poisson", "Sampler"]

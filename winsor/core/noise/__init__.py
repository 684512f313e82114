"""Noise: laws on a lattice, the cipher that draws them, and the mechanisms that scale them."""

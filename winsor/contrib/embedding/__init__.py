"""Gradient embedding: a low-rank part and a residual, from public gradients (paper 5, section
5.3)."""

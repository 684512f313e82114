"""Shim until small.py and Value are rewritten."""

FLOAT32_SUM_ROWS = 1 << 14


def exact_or_zero(weights):
    """Return the weights."""
    return weights

"""Norms and sums of bounded rows: the arithmetic that a stated sensitivity relies on."""

"""Value clipping (paper 3): rules, their bounds, and the engine that needs one backward pass
only."""

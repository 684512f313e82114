"""Save a training run and continue it as if it had never stopped."""

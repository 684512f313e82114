"""ModelMix (paper 5): random mixing of iterates with amplified accounting."""

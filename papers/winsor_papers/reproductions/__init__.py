"""Tables and figures of the five papers, one folder per paper; `winsor reproduce` runs them."""

"""Reports of runs: one self-contained HTML page, and the same as JSON."""

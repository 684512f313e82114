"""Runs from configuration files: `winsor train` and `winsor compare`.

A run is a directory that can be killed at any moment and resumed: configuration, ledger, metrics,
checkpoint, environment, and at the end the model and the result.
"""

"""Checks of a training before and while it runs: arguments, losses, independent rows."""

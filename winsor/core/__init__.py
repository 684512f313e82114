"""The trusted room: what must be right for epsilon to be true.

Nothing here imports torch, scikit-learn or any other room of winsor
(`tests/core/test_boundary.py`). docs/what-you-must-trust.md lists the files with a line each.
"""

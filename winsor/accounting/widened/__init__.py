"""Noise widened by an independent uniform on every coordinate: events and their certified bounds.

ModelMix (`winsor.contrib.modelmix`) mixes iterates, which adds such a uniform; the Laplace
mechanism uses the same bounds at width zero. They live here, not in `contrib`, so that every ledger
can be read wherever accounting is (docs/adr/0005-the-floor-plan.md).
"""

from winsor.accounting.widened import gaussian, laplace

__all__ = ["gaussian", "laplace"]

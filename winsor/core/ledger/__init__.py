"""The append-only record of what was released, and the one way from it to a `Guarantee`."""

from winsor.core.ledger.ledger import Ledger, config_hash

__all__ = ["Ledger", "config_hash"]

"""Events: what one release costs, one file per kind."""

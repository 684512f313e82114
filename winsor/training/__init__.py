"""Private training of networks: `make_private`, the loop, checks, checkpoints, several ranks."""

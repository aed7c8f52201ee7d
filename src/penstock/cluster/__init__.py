"""What the nodes of a cluster agree on, pure: no I/O, no clock, no randomness."""

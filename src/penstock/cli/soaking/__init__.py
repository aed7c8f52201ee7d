"""The parts of `make soak`: one node that is broken in every way that a machine knows."""

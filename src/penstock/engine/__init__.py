"""Core and store put together, still without I/O of their own: shells drive it."""

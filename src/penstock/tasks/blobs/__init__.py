"""Values that are too large for a message: stored elsewhere first, and told by reference."""

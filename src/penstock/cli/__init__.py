"""Commands: each a thin call into the library."""

"""A whole cluster in one thread: production nodes, production clients, one clock, one seed."""

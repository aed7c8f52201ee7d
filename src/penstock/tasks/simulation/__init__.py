"""Tasks at a scale that no test machine has: production decisions on the simulator's clock."""

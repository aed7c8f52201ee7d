"""The journal, its segments, checkpoints, recovery and cleaning, over a `Disk`."""

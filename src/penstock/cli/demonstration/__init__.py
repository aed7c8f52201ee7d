"""The parts of `penstock demo-node`: clients that report, and the check of their reports."""

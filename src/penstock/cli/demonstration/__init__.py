"""The parts of `penstock demo`: clients that report, and the check of their reports."""

"""Penstock side by side with what a Python user would pick instead: `make bench-peers`."""

"""Frames, batches, codec: the one place that knows bytes."""

"""Stateful consumers: how a group divides partitions, and what a consumer keeps of each."""

"""Copies of a shard's log on other nodes: what an owner sends, what a follower accepts."""

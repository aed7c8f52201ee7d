"""Watching tasks: what workers say of themselves, where a task is and why, a run as a plot."""

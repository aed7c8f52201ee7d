"""Schedules: tasks that are submitted at certain times, by whichever worker is there."""

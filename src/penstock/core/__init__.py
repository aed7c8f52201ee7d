"""The pure state machines: no I/O, no clock, no randomness. Time comes in with every event."""

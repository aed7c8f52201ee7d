"""The parts of `make groups`: members of a group that come, go and are killed, and what is checked
of the sessions that they assemble."""

"""The parts of `make faults`: a cluster that is broken on purpose, clients, ledgers, checkers."""

"""The parts of `make dag`: a random graph of tasks, workers that are killed while they run it, and
what is checked of the outcomes."""

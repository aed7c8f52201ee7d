"""The worker: a puller that owns connection and leases, executors that run functions."""

"""What `penstock bench` measures: floors of the machine, workloads on a node, and targets."""

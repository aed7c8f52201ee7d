"""Tasks of Penstock beside other task systems; `make bench-tasks`."""

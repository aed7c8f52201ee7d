"""What things cost in simulations of tasks. Assumptions, near what one machine measures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Microseconds of a network, and of processors that each do one thing at a time."""

    network_us: int = 200  # one way, typical
    pipe_us: int = 50  # between a worker's puller and an executor, one way
    node_call_us: int = 60  # of any request
    node_task_us: float = 0.3  # beyond that, of each task in it
    client_task_us: float = 15.0  # to submit a task
    puller_task_us: float = 12.0  # half of it when a task comes, half when it ends
    executor_task_us: float = 15.0  # beside what the task itself takes

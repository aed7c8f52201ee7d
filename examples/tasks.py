"""Functions that workers run: many at once, and a graph by passing futures."""

from __future__ import annotations

import tempfile

import penstock


@penstock.task(retries=3, timeout=30)
def square(number: int) -> int:
    """What a worker does."""
    return number * number


@penstock.task
def total(numbers: list[int]) -> int:
    """Runs when all of its numbers are there."""
    return sum(numbers)


def main() -> None:
    """One program is client, node and worker; `penstock worker examples/tasks.py` is another."""
    with (
        tempfile.TemporaryDirectory() as folder,
        penstock.open(folder) as fabric,
        fabric.tasks() as app,
        app.worker(concurrency=2),
    ):
        print(app.submit(square, 7).result())
        print(sum(app.map(square, range(10_000))))
        parts = [app.submit(square, each) for each in range(10)]
        print(app.submit(total, parts).result())


if __name__ == "__main__":
    main()

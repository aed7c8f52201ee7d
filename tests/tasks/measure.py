"""What a task costs its client: `python -m tests.tasks.measure [workers]`, from the checkout.

A node and the tiny worker run in processes of their own; null tasks; durability `written`. CPU
times are of this process, client and its thread, and hold on a busy machine too; times of the clock
stand beside those of a ProcessPoolExecutor in the same run.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import quantiles

from tests.node.conftest import NodeProcess
from tests.tasks import functions
from tests.tasks.tiny_worker import TinyWorker

import penstock

ROUND_TRIPS, TASKS = 500, 10_000


def work(url: str) -> None:
    """A worker without frills, until it is killed."""
    with penstock.connect(url) as fabric:
        worker = TinyWorker(fabric, cancels=False)
        while True:
            if (delivery := worker.queue.pop_batch(1000, timeout=5.0)) is not None:
                worker.complete(delivery)


def plain_square(x: int) -> int:
    """What a pool of processes is given."""
    return x * x


def many(what: str, run: Callable[[], object]) -> None:
    cpu, clock = time.process_time(), time.perf_counter()
    run()
    cpu_us = (time.process_time() - cpu) / TASKS * 1e6
    rate = TASKS / (time.perf_counter() - clock)
    print(f"{what:32} {cpu_us:7.1f} µs of CPU each, {rate:9,.0f} tasks/s")


def single(what: str, run: Callable[[], object]) -> None:
    times_ms: list[float] = []
    cpu = time.process_time()
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        run()
        times_ms.append((time.perf_counter() - began) * 1e3)
    cpu_us = (time.process_time() - cpu) / ROUND_TRIPS * 1e6
    cuts = quantiles(times_ms, n=20)
    text = f"p50 {cuts[9]:.3f} ms, p95 {cuts[18]:.3f} ms"
    print(f"{what:32} {cpu_us:7.1f} µs of CPU each, {text}")


def measure(url: str) -> None:
    with penstock.connect(url) as fabric:
        app = fabric.tasks("default", durability="written")
        square = functions.square
        app.submit(square, 7).result(60)
        for _ in range(2):
            single("round trip, kept", lambda: app.submit(square, 7).result(60))
            single("round trip, not kept", lambda: app.submit(square, 7, keep=0).result(60))
            many("map", lambda: list(app.map(square, range(TASKS))))
            many(
                "submit, gather",
                lambda: app.gather([app.submit(square, each, keep=0) for each in range(TASKS)]),
            )
    with ProcessPoolExecutor(1) as pool:
        single("ProcessPoolExecutor", lambda: pool.submit(plain_square, 7).result())
        many("ProcessPoolExecutor", lambda: list(pool.map(plain_square, range(TASKS))))


def main(workers: int) -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder))
        node.start()
        with penstock.connect(node.url) as fabric:
            fabric.tasks("default", durability="written").close()
        started = [
            context.Process(target=work, args=(node.url,), daemon=True) for _ in range(workers)
        ]
        for process in started:
            process.start()
        try:
            measure(node.url)
        finally:
            for process in started:
                process.kill()
            node.end()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)

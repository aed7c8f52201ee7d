"""The command line: `penstock`.

Commands import the library when they run, not before: `penstock --help` answers at once.
"""

from __future__ import annotations

import importlib
import importlib.util

import typer

from penstock.cli import (
    cluster,
    consume,
    doctor,
    group,
    mapreduce,
    metrics,
    pipeline,
    provision,
    publication,
    queue,
    serve,
    spark,
    stats,
    table,
    tasks,
    top,
    topic,
    worker,
)
from penstock.cli.command import new_app, told_errors

OTHERS = {
    "bench": "Measure this machine: queues, topics, and what its disk and loopback allow.",
    "demo": "Show what Penstock does, with Spark: clicks to sessions to minutes, killed half way.",
    "demo-node": "Show what a node does: killed at work, and nothing is lost or doubled.",
    "sim": "Run the simulator: many nodes, faults, one seed.",
}
"""Commands that are programs of their own: a module of this package with a function of its name."""

app = new_app("Penstock: queues, topics and tables in one durable fabric.")
app.command()(serve.serve)
app.add_typer(queue.app, name="queue")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.command()(consume.consume)
app.command()(worker.worker)
app.command()(provision.provision)
app.add_typer(tasks.app, name="tasks")
app.add_typer(mapreduce.app, name="mapreduce")
app.add_typer(table.app, name="table")
app.add_typer(publication.app, name="publication")
app.add_typer(cluster.app, name="cluster")
app.add_typer(metrics.app, name="metrics")
app.add_typer(spark.app, name="spark")
app.add_typer(pipeline.app, name="pipeline")
app.command()(top.top)
app.command()(stats.stats)
app.command()(doctor.doctor)
app.command()(stats.version)


def module_name(command: str) -> str:
    """Where a command of `OTHERS` is, and what its function is called."""
    return command.replace("-", "_")


def _hand_over(name: str) -> None:
    """A command that is imported only when it is called, with all arguments for itself."""
    named = module_name(name)

    def run(context: typer.Context) -> None:
        module = importlib.import_module(f"penstock.cli.{named}")
        program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        program.command()(getattr(module, named))
        with told_errors(as_json="--json" in context.args):
            program(context.args, prog_name=f"penstock {name}")

    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, help=OTHERS[name], context_settings=settings)(run)


for _name in OTHERS:
    if importlib.util.find_spec(f"penstock.cli.{module_name(_name)}") is not None:
        _hand_over(_name)


def main() -> None:
    """Entry point of the `penstock` program."""
    app(prog_name="penstock")


if __name__ == "__main__":
    main()

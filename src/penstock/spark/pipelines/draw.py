"""A pipeline as a picture: a tree for the terminal, mermaid for documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.spark.pipelines.spec import Pipeline, Sink, Source, Step

_FIRST_WORDS = 48  # characters of SQL that are shown


def label(node: Source | Step | Sink, folder: Path) -> str:
    """What a node does, in a few words. Paths in the folder of the pipeline are told from there."""
    if isinstance(node, Step):
        return _step_label(node)
    target = node.target.removeprefix(f"{folder}/")
    if isinstance(node, Source):
        return f"{node.kind} {target} rows/s" if node.kind == "rate" else f"{node.kind} {target}"
    how = "once" if node.every is None else f"every {node.every:g} s"
    form = f" as {node.format}" if node.kind == "files" else ""
    return f"→ {f'{node.kind} {target}'.strip()}{form} ({node.mode}, {how})"


def _step_label(node: Step) -> str:
    if node.kind == "sessions":
        times = [f"{name} {node.settings[name]:g} s" for name in ("timeout", "delay")
                 if name in node.settings]  # fmt: skip
        return ", ".join(["sessions", *times])
    words = " ".join(node.text.split())
    return f"{node.kind} {words if len(words) <= _FIRST_WORDS else words[:_FIRST_WORDS] + '…'}"


def nodes(pipeline: Pipeline) -> dict[str, Source | Step | Sink]:
    """All nodes; those of sinks have a prefix, because a sink may be named as a step."""
    found: dict[str, Source | Step | Sink] = {each.name: each for each in pipeline.sources}
    found |= {each.name: each for each in pipeline.steps}
    return found | {f"sink.{each.name}": each for each in pipeline.sinks}


def as_tree(pipeline: Pipeline) -> list[str]:
    """Lines of text: sources at the margin, below each what its rows go through. What has several
    inputs is drawn below the first of them, and named below the others."""
    every = nodes(pipeline)
    below: dict[str, list[str]] = {name: [] for name in every}
    for start, end in pipeline.edges():
        below[start].append(end)
    drawn: set[str] = set()

    def draw(name: str, first: str, rest: str) -> Iterator[str]:
        node = every[name]
        if name in drawn:
            yield f"{first}{node.name} (above)"
            return
        drawn.add(name)
        yield f"{first}{node.name}  {label(node, pipeline.file.parent)}"
        for number, child in enumerate(below[name]):
            last = number == len(below[name]) - 1
            yield from draw(
                child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
            )

    return [line for source in pipeline.sources for line in draw(source.name, "", "")]


def as_mermaid(pipeline: Pipeline) -> list[str]:
    """A flowchart of mermaid."""
    lines = ["flowchart LR"]
    for name, node in nodes(pipeline).items():
        text = f"{node.name}: {label(node, pipeline.file.parent)}".replace('"', "'")
        opened, closed = ("[(", ")]") if not isinstance(node, Step) else ("[", "]")
        lines.append(f'  {_id(name)}{opened}"{text}"{closed}')
    lines += [f"  {_id(start)} --> {_id(end)}" for start, end in pipeline.edges()]
    return lines


def _id(name: str) -> str:
    return name.replace(".", "__")

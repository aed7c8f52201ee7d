"""The graph around a task, as a tree of text or for Graphviz. No I/O here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.tasks.names import shown

MAX_SHOWN = 50  # tasks, unless more are asked for
_COLOURS = {
    "done": "palegreen", "failed": "salmon", "dead": "salmon", "skipped": "khaki",
    "cancelled": "khaki", "running": "lightskyblue", "leased": "lightskyblue",
}  # fmt: skip


class Node(NamedTuple):
    """A task of the graph."""

    task: bytes
    function: str
    state: str
    after: list[bytes]
    """Tasks that it comes after, as far as they are known."""


@dataclass(slots=True)
class TaskGraph:
    """Tasks around one of them. `more`: there are others that are not shown."""

    centre: bytes
    nodes: dict[bytes, Node] = field(default_factory=dict)
    more: bool = False

    def children(self, task: bytes) -> list[bytes]:
        """Tasks that come after one, of those that are known."""
        return [each.task for each in self.nodes.values() if task in each.after]


def around(centre: Node, known: dict[bytes, Node], limit: int) -> TaskGraph:
    """The part of what is known that is nearest to a task: at most `limit` tasks, above and below
    it in turn."""
    graph = TaskGraph(centre.task, {centre.task: centre})
    below: dict[bytes, list[Node]] = {}
    for node in known.values():
        for parent in node.after:
            below.setdefault(parent, []).append(node)
    ups, downs = [centre], [centre]
    while ups or downs:
        parents = [known[task] for node in ups for task in node.after if task in known]
        children = [child for node in downs for child in below.get(node.task, ())]
        ups, downs = _add(graph, parents, limit), _add(graph, children, limit)
    return graph


def _add(graph: TaskGraph, nodes: Iterable[Node], limit: int) -> list[Node]:
    new: list[Node] = []
    for node in nodes:
        if node.task in graph.nodes:
            continue
        if len(graph.nodes) >= limit:
            graph.more = True
            break
        graph.nodes[node.task] = node
        new.append(node)
    return new


def tree(graph: TaskGraph) -> list[str]:
    """Lines: what the task comes after, the task itself, and what comes after it."""
    centre = graph.nodes[graph.centre]
    lines: list[str] = []
    if centre.after:
        lines += ["after", *_branches(graph, graph.centre, True, {graph.centre}), ""]
    lines.append(_line(centre))
    lines += _branches(graph, graph.centre, False, {graph.centre})
    if graph.more:
        lines += ["", f"and more: {len(graph.nodes):,} tasks are shown"]
    return lines


def _branches(graph: TaskGraph, task: bytes, up: bool, told: set[bytes]) -> Iterator[str]:
    """One branch for each neighbour; what was told of before is not followed again."""
    # A stack of its own: a chain may be longer than Python's.
    stack = [(each, "", last) for each, last in _lasts(_next(graph, task, up))][::-1]
    while stack:
        each, indent, last = stack.pop()
        node = graph.nodes.get(each)
        again = each in told
        told.add(each)
        text = f"{shown(each)}  not shown" if node is None else _line(node)
        follows = [] if node is None else _next(graph, each, up)
        yield f"{indent}{'└─ ' if last else '├─ '}{text}{' …' if again and follows else ''}"
        if not again:
            deeper = indent + ("   " if last else "│  ")
            stack += [(one, deeper, end) for one, end in _lasts(follows)][::-1]


def _next(graph: TaskGraph, task: bytes, up: bool) -> list[bytes]:
    return graph.nodes[task].after if up else graph.children(task)


def _lasts(tasks: list[bytes]) -> list[tuple[bytes, bool]]:
    return [(task, number == len(tasks)) for number, task in enumerate(tasks, 1)]


def _line(node: Node) -> str:
    return f"{shown(node.task)}  {node.state}  {node.function}".rstrip()


def dot(graph: TaskGraph) -> str:
    """The same for Graphviz: `dot -Tsvg`."""
    lines = ["digraph tasks {", "  node [shape=box style=filled fillcolor=white];"]
    for node in graph.nodes.values():
        name, label = shown(node.task), _quoted(node.function or shown(node.task))
        colour = _COLOURS.get(node.state, "white")
        bold = " penwidth=3" if node.task == graph.centre else ""
        lines.append(f'  "{name}" [label="{label}\\n{node.state}" fillcolor={colour}{bold}];')
    for node in graph.nodes.values():
        lines += [
            f'  "{shown(parent)}" -> "{shown(node.task)}";'
            for parent in node.after
            if parent in graph.nodes
        ]
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

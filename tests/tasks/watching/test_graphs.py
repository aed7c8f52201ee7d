"""The graph around a task: bounded, and readable."""

from __future__ import annotations

from penstock.tasks.watching.graphs import Node, TaskGraph, around, dot, tree


def node(name: str, *after: str, state: str = "done") -> Node:
    return Node(name.encode() * 16, f"m:{name}", state, [each.encode() * 16 for each in after])


def graph(centre: str, *nodes: Node, limit: int = 50) -> TaskGraph:
    known = {each.task: each for each in nodes}
    return around(known[centre.encode() * 16], known, limit)


def names(lines: list[str]) -> list[str]:
    """Lines with `a` for the id of the task that is called so."""
    for letter in "abcdefgh":
        lines = [line.replace((letter.encode() * 16).hex(), letter) for line in lines]
    return lines


DIAMOND = [node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", state="held")]


def test_what_comes_before_and_after_a_task() -> None:
    assert names(tree(graph("b", *DIAMOND))) == [
        "after",
        "└─ a  done  m:a",
        "",
        "b  done  m:b",
        "└─ d  held  m:d",
    ]


def test_what_was_told_of_before_is_not_followed_again() -> None:
    diamond = [*DIAMOND, node("e", "d", state="held")]
    assert names(tree(graph("a", *diamond))) == [
        "a  done  m:a",
        "├─ b  done  m:b",
        "│  └─ d  held  m:d",
        "│     └─ e  held  m:e",
        "└─ c  done  m:c",
        "   └─ d  held  m:d …",
    ]


def test_the_nearest_are_shown_first() -> None:
    chain = [node("a"), *[node(b, a) for a, b in zip("abcdef", "bcdefg", strict=True)]]
    near = graph("d", *chain, limit=3)
    assert {each.function for each in near.nodes.values()} == {"m:c", "m:d", "m:e"}
    assert near.more
    assert names(tree(near))[-1] == "and more: 3 tasks are shown"
    assert "└─ b  not shown" in "\n".join(names(tree(near)))
    assert not graph("d", *chain).more


def test_a_chain_may_be_very_long() -> None:
    keys = [number.to_bytes(16, "big") for number in range(3_000)]
    known = {
        key: Node(key, "m:f", "done", [keys[number - 1]] if number else [])
        for number, key in enumerate(keys)
    }
    assert len(tree(around(known[keys[0]], known, 3_000))) == 3_000


def test_for_graphviz() -> None:
    text = dot(graph("b", *DIAMOND, Node(b"x" * 16, 'odd"name\\', "failed", [b"b" * 16])))
    assert f'"{(b"a" * 16).hex()}" -> "{(b"b" * 16).hex()}";' in text
    assert 'label="odd\\"name\\\\\\nfailed" fillcolor=salmon' in text
    assert text.count("->") == 3
    assert text.endswith("}")

"""The shape of the code base: who may import whom, how large things get, what never leaks in."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "penstock"

PURE = frozenset({"wire", "store", "core", "engine", "cluster", "qos"})
SHELLS = frozenset({"node", "client", "sim"})
# What a user imports as `penstock` itself; it sits above everything but the command line.
SURFACE = "penstock"

# Layer -> the layers it may import. Its own modules are always allowed; nothing else is.
BELOW_SHELLS = PURE | {"errors", "machine", "near", "way"}
PUBLIC_CLIENT = frozenset({"errors", "wire", "client"})
UPPER = frozenset({"consumers", "tasks", "bridge", "spark"})
LAYERS: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "machine": frozenset(),
    "near": frozenset({"machine"}),
    "way": frozenset(),
    "wire": frozenset({"errors"}),
    "store": frozenset({"errors", "wire"}),
    "core": frozenset({"errors", "wire"}),
    "cluster": frozenset({"errors", "wire", "store", "core"}),
    "engine": frozenset({"errors", "wire", "store", "core", "cluster"}),
    "qos": frozenset({"errors", "wire", "store", "core"}),
    "node": BELOW_SHELLS,
    "client": BELOW_SHELLS,
    # It runs the calls that a node of a cluster answers; its I/O stands in for the rest of `node`.
    "sim": BELOW_SHELLS | {"node", "client"},
    # The fabric inside the caller's process: a client and an engine, with no server between them.
    "embedded": BELOW_SHELLS | {"node", "client"},
    "testing": BELOW_SHELLS | SHELLS | {"embedded"},
    "aio": BELOW_SHELLS | UPPER | {"node", "client", "embedded"},
    "consumers": PUBLIC_CLIENT,
    "tasks": PUBLIC_CLIENT,
    "bridge": PUBLIC_CLIENT,
    # Its operators run the assembler of the consumers, so that both give the same records.
    "spark": PUBLIC_CLIENT | {"consumers"},
    SURFACE: BELOW_SHELLS | SHELLS | UPPER | {"embedded", "testing"},
    "cli": BELOW_SHELLS | SHELLS | UPPER | {"testing", SURFACE},
}

# `fabric.tasks(…)` is where users look for it. The one step up: inside the method that is called.
STEPS_UP = {
    "src/penstock/client/blocking.py": frozenset({"tasks"}),
    "src/penstock/client/aio.py": frozenset({"tasks"}),
}

# A folder of an upper layer that runs it on the simulator, against the core as it is.
SIMULATION = "simulation"
OF_SIMULATIONS = frozenset({"core", "cluster", "sim"})

# Clocks, chance, concurrency and I/O reach a pure layer as arguments only.
IMPURE_MODULES = frozenset(
    {
        "asyncio",
        "concurrent",
        "datetime",
        "multiprocessing",
        "os",
        "random",
        "secrets",
        "select",
        "selectors",
        "socket",
        "ssl",
        "subprocess",
        "threading",
        "time",
        "uvloop",
    }
)

# The environment says, once and at import, whether compiled code may be used; results are the same.
EXEMPT = {"src/penstock/wire/packing.py": frozenset({"os"})}

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60

TEXT_SUFFIXES = frozenset(
    {"", ".cfg", ".ini", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"}
)
GENERATED_FOLDERS = frozenset({"__pycache__", "build", "dist"})
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:home|Users|root|work|tmp|mnt)/[\w.]|\b[A-Za-z]:\\+Users\\"
)


def layer_of(path: Path, package: Path = PACKAGE) -> str:
    first = path.relative_to(package).parts[0].removesuffix(".py")
    return {"__init__": SURFACE, "__main__": "cli"}.get(first, first)


def files_of(layer: str) -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if layer_of(path) == layer]


def imported_modules(tree: ast.AST, path: Path, package: Path = PACKAGE) -> Iterator[str]:
    """Every module a file imports, absolute, also inside functions and for types only."""
    folder = ("penstock", *path.relative_to(package).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = folder[: len(folder) - node.level + 1] if node.level else ()
            module = ".".join((*base, *([node.module] if node.module else [])))
            if module == "penstock":
                yield from (f"penstock.{alias.name}" for alias in node.names)
            else:
                yield module


def imported_layers(tree: ast.AST, path: Path, package: Path = PACKAGE) -> set[str]:
    names = [name.split(".") for name in imported_modules(tree, path, package)]
    inside = [parts for parts in names if parts[0] == "penstock"]
    return {parts[1] if len(parts) > 1 and parts[1] in LAYERS else SURFACE for parts in inside}


def impurities(tree: ast.AST, path: Path, package: Path = PACKAGE) -> set[str]:
    tops = {name.split(".")[0] for name in imported_modules(tree, path, package)}
    opens = {
        "open()"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    }
    return (tops & IMPURE_MODULES) | opens


def long_functions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{node.name} has {lines} lines"


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_files() -> Iterator[Path]:
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            name
            for name in subfolders
            if name == ".ci" or not (name.startswith(".") or name in GENERATED_FOLDERS)
        ]
        paths = (Path(folder, name) for name in names)
        yield from (path for path in paths if path.suffix in TEXT_SUFFIXES)


def existing_files(layer: str) -> list[Path]:
    files = files_of(layer)
    if not files:
        pytest.skip(f"{layer} does not exist yet")
    return files


def test_every_module_belongs_to_a_layer() -> None:
    strays = [named(path) for path in PACKAGE.rglob("*.py") if layer_of(path) not in LAYERS]
    assert strays == [], "give each a row in LAYERS"


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_what_lies_below(layer: str) -> None:
    allowed = LAYERS[layer] | {layer}
    wrong = [
        f"{named(path)} imports {other}"
        for path in existing_files(layer)
        for other in sorted(
            imported_layers(parse(path), path) - allowed - STEPS_UP.get(named(path), frozenset())
        )
        if not (layer in UPPER and path.parent.name == SIMULATION and other in OF_SIMULATIONS)
    ]
    assert wrong == []


@pytest.mark.parametrize("layer", sorted(PURE))
def test_pure_layer_has_no_clock_chance_or_io(layer: str) -> None:
    wrong = [
        f"{named(path)} uses {thing}"
        for path in existing_files(layer)
        for thing in sorted(impurities(parse(path), path) - EXEMPT.get(named(path), frozenset()))
    ]
    assert wrong == []


def test_files_stay_small() -> None:
    sizes = {
        named(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    assert {name: size for name, size in sizes.items() if size > MAX_FILE_LINES} == {}


def test_functions_stay_small() -> None:
    wrong = [
        f"{named(path)}: {problem}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for problem in long_functions(parse(path))
    ]
    assert wrong == []


def test_no_file_names_a_path_of_one_machine() -> None:
    wrong = [
        f"{named(path)}:{number}"
        for path in sorted(text_files())
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if MACHINE_PATH.search(line)
    ]
    assert wrong == []


def test_layers_have_no_cycle() -> None:
    settled: set[str] = set()
    while len(settled) < len(LAYERS):
        ready = {layer for layer, below in LAYERS.items() if below <= settled} - settled
        assert ready, f"cycle among {sorted(set(LAYERS) - settled)}"
        settled |= ready


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        ("import penstock.core.queue", {"core"}),
        ("from penstock.wire import batch", {"wire"}),
        ("from penstock import errors, connect", {"errors", SURFACE}),
        ("import penstock", {SURFACE}),
        ("from . import segments", {"store"}),
        ("from .. import core", {"core"}),
        ("from ..core.queue import Queue", {"core"}),
        ("def f():\n    import penstock.node", {"node"}),
        ("if TYPE_CHECKING:\n    from penstock.sim import clock", {"sim"}),
        ("import numpy, struct", set()),
    ],
)
def test_imports_are_found_in_every_form(source: str, layers: set[str]) -> None:
    assert imported_layers(ast.parse(source), PACKAGE / "store" / "journal.py") == layers


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os.path", {"os"}),
        ("from time import monotonic_ns", {"time"}),
        ("def f():\n    with open('x'): pass", {"open()"}),
        ("from .time import Clock", set()),
        ("disk.open('x')", set()),
    ],
)
def test_impurities_are_found_in_every_form(source: str, found: set[str]) -> None:
    assert impurities(ast.parse(source), PACKAGE / "store" / "journal.py") == found


def test_long_functions_are_found() -> None:
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    assert list(long_functions(ast.parse(f"async def f():\n{body}"))) == ["f has 61 lines"]


@pytest.mark.parametrize("folder", ["home", "Users", "root", "work", "tmp", "mnt"])
def test_machine_paths_are_found(folder: str) -> None:
    assert MACHINE_PATH.search(f"see /{folder}/me")
    assert not MACHINE_PATH.search(f"see src/{folder}/me")

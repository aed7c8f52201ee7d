"""Importing what a worker is given: modules by name, scripts by file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextvars import ContextVar
from pathlib import Path

from penstock.errors import InvalidError

_loading: ContextVar[str] = ContextVar("loading", default="")


def load(module: str) -> None:
    """Imports `package.module`, or the file `script.py` under the name of its stem, as callers name
    functions of a script. The current folder, or the script's, can be imported from.

    InvalidError if there is no such module; what the module itself raises passes through.
    """
    before = _loading.set(module)
    try:
        _load(module)
    finally:
        _loading.reset(before)


def refuse_while_loading(what: str) -> None:
    """InvalidError if a worker is just importing the module that does this: it would do it once
    for each executor, and wait for itself; one that starts a worker would never stop to."""
    if module := _loading.get():
        raise InvalidError(
            f"{what} while a worker imports {module}",
            advice='Put what a script does under `if __name__ == "__main__":`.',
        )


def _load(module: str) -> None:
    if module.endswith(".py"):
        _load_file(Path(module))
        return
    _importable(Path.cwd())
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks one that it imports
        raise InvalidError(
            f"there is no module {module!r}",
            advice="Name it as `import` would, from the folder of your program; or give a file.",
        ) from None


def is_loaded(module: str) -> bool:
    """Whether this process has such a module, or runs that very file."""
    if not module.endswith(".py"):
        return module in sys.modules
    main = getattr(sys.modules["__main__"], "__file__", None)
    return main is not None and Path(main).resolve() == Path(module).resolve()


def _load_file(path: Path) -> None:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise InvalidError(f"{path} is not a file of Python code")
    _importable(path.resolve().parent)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

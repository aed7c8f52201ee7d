"""Importing what a worker is given: modules by name, scripts by file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from pathlib import Path

from penstock.errors import InvalidError

_here = threading.local()


def load(module: str) -> None:
    """Imports `package.module`, or the file `script.py` under the name of its stem, as callers name
    functions of a script. The current folder, or the script's, can be imported from.

    InvalidError if there is no such module; what the module itself raises passes through.
    """
    _here.loads = True
    try:
        if module.endswith(".py"):
            _load_file(Path(module))
        else:
            _load_module(module)
    finally:
        _here.loads = False


def refuse_while_loading() -> None:
    """InvalidError if a worker is just loading a module, in this thread. A program that does its
    work at the top level would be run by its own workers, and start workers that load it again."""
    if getattr(_here, "loads", False):
        raise InvalidError(
            "a worker loads this module, which uses tasks while it is loaded",
            advice='Put what the program does under `if __name__ == "__main__":`.',
        )


def _load_module(module: str) -> None:
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

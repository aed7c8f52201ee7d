"""Functions and classes by import path, the same on both sides of the wire.

A script that is run directly is `__main__` there and something else on a worker that was given its
file: in paths it goes by the module name or the stem of its file. What is typed at a prompt or into
a notebook has no file; it goes by a name that no other process has, so that nobody takes something
else for it.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import PurePath
from types import ModuleType

from penstock.errors import InvalidError

_MAIN = "__main__"
_SEPARATOR = ":"
_PROMPT = "<prompt "  # as no file is called
_OWN_PROMPT = f"{_PROMPT}{secrets.token_hex(6)}>"


def path_of(thing: object) -> str:
    """The import path of a function or class: "package.module:qualname".

    InvalidError, with the reason, if others could not find it there.
    """
    module = getattr(thing, "__module__", None)
    name = getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise InvalidError(f"{thing!r} has no import path: neither function nor class")
    if "<" in name:
        what = "a lambda" if "<lambda>" in name else "defined inside a function"
        raise InvalidError(
            f"{name} is {what}: a worker cannot import it",
            advice="Define it with `def` at the top level of a module.",
        )
    return f"{module_path(module)}{_SEPARATOR}{name}"


def module_path(module: str) -> str:
    """The name of a loaded module as others would import it."""
    if module != _MAIN:
        return module
    main = sys.modules[_MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(f".{_MAIN}")
    file = getattr(main, "__file__", None)
    if not file or file.startswith("<"):  # such as <stdin>
        return _OWN_PROMPT
    return PurePath(file).stem


def is_typed(path: str) -> bool:
    """Whether a path leads to something that was typed at a prompt: that of any process."""
    return path.startswith(_PROMPT)


def typed_error(name: str) -> InvalidError:
    """Why something that was typed at a prompt cannot be run."""
    return InvalidError(
        f"{name} is typed at a prompt or into a notebook, where other processes cannot import it",
        advice="Put it into a module or a file and import it here (in a notebook, `%%writefile "
        'tasks.py`); or run it in threads of this process: app.worker(kind="thread").',
    )


def loadable(module: str) -> str:
    """What a worker has to be given to load a module of this process, which is not typed at a
    prompt: a name, or a file."""
    main = sys.modules[_MAIN]
    if module != _MAIN or getattr(main, "__spec__", None) is not None:
        return module_path(module)
    return str(main.__file__)


def package_of(path: str) -> str:
    """The top-level package of an import path."""
    return path.partition(_SEPARATOR)[0].partition(".")[0]


def loaded(path: str) -> object | None:
    """What stands under an import path in a module that is loaded already; None if nothing does.

    Never imports: a path that came off the wire must not run code.
    """
    module_name, found, name = path.partition(_SEPARATOR)
    module = _loaded_module(module_name)
    if module is None or not found or not name:
        return None
    thing: object = module
    for part in name.split("."):
        thing = vars(thing).get(part) if isinstance(thing, type | ModuleType) else None
        if thing is None:
            return None
    return thing


def _loaded_module(name: str) -> ModuleType | None:
    module = sys.modules.get(name)
    if module is not None or _MAIN not in sys.modules:
        return module
    return sys.modules[_MAIN] if module_path(_MAIN) == name else None

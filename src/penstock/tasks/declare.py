"""`@penstock.task`: which functions may be run by workers, and how.

A task is named by its import path, so that the caller and the worker, which have both imported it,
mean the same function; no code travels.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from penstock.errors import InvalidError
from penstock.tasks.importing import is_typed, loadable, module_path, package_of, path_of
from penstock.tasks.options import DEFAULT_BACKOFF_S, TaskOptions, checked_options

P = ParamSpec("P")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A function that workers may run. Called itself, it is the plain function."""

    __name__: str

    def __init__(self, function: Callable[P, R], name: str, options: TaskOptions) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class Registry:
    """The tasks that the modules of this process have declared."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}
        self._packages: set[str] = set()

    def add(self, declared: Task[..., Any]) -> None:
        """Takes a task in. A module that is loaded again replaces its own; InvalidError if the name
        is another function's."""
        path = path_of(declared.function)
        other = self._tasks.get(declared.name)
        if other is not None and path_of(other.function) != path:
            raise InvalidError(
                f"{path} and {path_of(other.function)} are both declared as {declared.name!r}",
                advice="Give one of them another name.",
            )
        self._tasks[declared.name] = declared
        self._packages.add(package_of(path))

    def find(self, name: str) -> Task[..., Any] | None:
        """The task of this name."""
        return self._tasks.get(name)

    def names(self) -> list[str]:
        """The names of all tasks, in order."""
        return sorted(self._tasks)

    def modules(self) -> list[str]:
        """What a worker has to load to have the same tasks: names of modules, and files. What is
        typed at a prompt cannot be loaded."""
        modules = {each.function.__module__ for each in self._tasks.values()}
        return sorted(loadable(each) for each in modules if not is_typed(module_path(each)))

    def __len__(self) -> int:
        return len(self._tasks)

    def has_package(self, package: str) -> bool:
        """Whether a module of this top-level package has declared a task."""
        return package in self._packages


registry = Registry()


def package_names(allow: Iterable[str]) -> tuple[str, ...]:
    """Packages that a user allows; InvalidError if it is one name, whose letters would count."""
    if isinstance(allow, str):
        raise InvalidError(f"allow is a list of packages, not {allow!r}", advice="Use [package].")
    return tuple(allow)


class Trust:
    """Of which top-level packages classes may be made from bytes: those that have declared tasks
    here, and those that were added."""

    def __init__(self, packages: Iterable[str] = ()) -> None:
        self._added = set(packages)

    def add(self, path: str) -> None:
        """Trusts the package of an import path from now on."""
        self._added.add(package_of(path))

    def __call__(self, package: str) -> bool:
        return package in self._added or registry.has_package(package)


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...


@overload
def task(
    *,
    retries: int = ...,
    timeout: float | None = ...,
    backoff: float = ...,
    rate: str | None = ...,
    keep: float | None = ...,
    name: str | None = ...,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    function: Callable[P, R] | None = None,
    /,
    *,
    retries: int = 0,
    timeout: float | None = None,
    backoff: float = DEFAULT_BACKOFF_S,
    rate: str | None = None,
    keep: float | None = None,
    name: str | None = None,
) -> Task[P, R] | Callable[[Callable[P, R]], Task[P, R]]:
    """Declares a function as a task: `@task`, or `@task(retries=3, timeout=30)`.

    `retries`: further attempts after one that raised or ran out of time, the first after `backoff`
    seconds, each later one after twice as long. `timeout`: seconds of one attempt. `rate`: starts
    on all workers together, `"100/s"`. `keep`: seconds that the outcome is kept for other clients
    and tasks. `name`: instead of the import path, to be able to move the function later.
    InvalidError if a worker could not run it: methods of instances, generators, local functions.
    """
    options = checked_options(retries, timeout, backoff, rate, keep)

    def declare(function: Callable[P, R]) -> Task[P, R]:
        path = _checked_path(function)
        declared = Task(function, path if name is None else _checked_name(name), options)
        registry.add(declared)
        return declared

    return declare if function is None else declare(function)


def name_of(function: Callable[..., Any]) -> str:
    """The name that a function is called by on a worker, declared or not."""
    return function.name if isinstance(function, Task) else _checked_path(function)


def _checked_path(function: Callable[..., Any]) -> str:
    if not callable(function):
        raise InvalidError(f"only functions can be tasks, not {function!r}")
    owner = getattr(function, "__self__", None)
    if inspect.ismethod(function) and not isinstance(owner, type):
        raise _method_error(function.__qualname__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidError(
            f"{function.__qualname__} is a generator: a task has one result",
            advice="Return a list, or push to a queue as you go.",
        )
    path = path_of(function)
    if _takes_self(function, path):
        raise _method_error(path)
    return path


def _takes_self(function: Callable[..., Any], path: str) -> bool:
    """Whether it is a plain function in the body of a class, to be bound to an instance."""
    if not inspect.isfunction(function) or "." not in path.partition(":")[2]:
        return False
    return next(iter(inspect.signature(function).parameters), "") in ("self", "cls")


def _method_error(name: str) -> InvalidError:
    return InvalidError(
        f"{name} is a method: its object would have to be sent along",
        advice="Make it a function that takes the object's data, or a staticmethod.",
    )


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name or ":" in name:
        raise InvalidError(f"a task's name must be a string without a colon, not {name!r}")
    return name

"""numpy, once it is needed.

A process that pushes and pops single messages does without: it starts in two thirds of the time,
and with 12 MB less. Above all, loading numpy starts a thread of its mathematics on each core, which
then looks for work without a pause for a tenth of a second; requests were held up by it meanwhile.

`from penstock.wire.numeric import np`, and nothing of it while a module is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Ints", "Longs", "Rows", "np"]

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int32]
    Longs = npt.NDArray[np.int64]
    Rows = npt.NDArray[np.intp]
else:
    Ints = Longs = Rows = object  # for annotations, which nobody evaluates

    class _Later:
        """A module that is loaded when something of it is used; then it costs what any does."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(import_module(self._name), attribute)
            setattr(self, attribute, found)
            return found

    np = _Later("numpy")

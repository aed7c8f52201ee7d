"""What ends with its `with` block."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Closes itself at the end of a `with` block, whatever happened in it."""

    def close(self) -> None:
        """Ends it; once more does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosing:
    """Closes itself at the end of an `async with` block, whatever happened in it."""

    async def close(self) -> None:
        """Ends it; once more does nothing."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

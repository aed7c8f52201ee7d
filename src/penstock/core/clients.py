"""Clients and their connections: each has one at a time."""

from __future__ import annotations

from penstock.errors import ProtocolError


class Clients:
    """The present connection of every client that said who it is.

    A client that comes back sends again what was not answered. If the node still read what is on
    its way over the connection before, a request that was refused since could take effect late.
    """

    def __init__(self) -> None:
        self._present: dict[int, tuple[int, int]] = {}  # origin -> attempt, connection
        self._origins: dict[int, int] = {}  # of connections

    def connected(self, connection: int, origin: int, attempt: int) -> int | None:
        """A client said HELLO: the connection that is over by that, if there is one.

        ProtocolError if the client has come over a later connection meanwhile.
        """
        if not origin:
            return None
        latest, before = self._present.get(origin, (0, None))
        if attempt < latest:
            raise ProtocolError("this client has connected again since")
        if before is not None:
            del self._origins[before]
        self._present[origin] = (attempt, connection)
        self._origins[connection] = origin
        return before

    def gone(self, connection: int) -> None:
        """A connection is over."""
        origin = self._origins.pop(connection, None)
        if origin is not None:
            del self._present[origin]

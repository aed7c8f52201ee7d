"""What a shell may look at, between events."""

from __future__ import annotations

from penstock.cluster.consensus.membership import Membership
from penstock.cluster.consensus.replication import Replication
from penstock.cluster.consensus.state import Role, State


class View:
    """The state of one node, for its shell, its metrics and its tests."""

    _state: State
    _replication: Replication

    @property
    def node(self) -> int:
        """The own id."""
        return self._state.node

    @property
    def role(self) -> Role:
        """What this node does in its term."""
        return self._state.role

    @property
    def term(self) -> int:
        """The newest term that this node knows."""
        return self._state.term

    @property
    def leader(self) -> int | None:
        """The leader of the term, if this node knows it."""
        return self._state.leader

    @property
    def membership(self) -> Membership:
        """The latest in the log, committed or not."""
        return self._state.log.membership

    @property
    def committed(self) -> int:
        """Everything through this index is decided."""
        return self._state.log.committed

    @property
    def last_index(self) -> int:
        """The end of the log."""
        return self._state.log.last_index

    def lag(self, node: int) -> int | None:
        """Committed entries that a peer is not known to have; None unless this node leads it."""
        progress = self._replication.peers.get(node)
        return None if progress is None else max(0, self.committed - progress.match)

"""Transfer of a snapshot from the leader to a follower, which requests one piece at a time.

The leader keeps only the time of the last request. For `patience` ticks after it the leader makes no new
checkpoint and removes nothing, so that a slow transfer can finish. If a piece is gone nevertheless, the
leader says so, and the transfer starts over.
"""

from hawser.log.journal.errors import BadSnapshot, Gone
from hawser.log.journal.journal import Journal
from hawser.log.journal.snapshot import Snapshot
from hawser.log.protocol import messages as m
from hawser.log.protocol.events import Promise, Send
from hawser.log.protocol.messages import Member

__all__ = ["Pulling", "Serving"]


class Serving:
    """The leader's side: pieces of the snapshot of its last checkpoint."""

    def __init__(self, journal: Journal, piece_bytes: int, patience: int) -> None:
        self._journal = journal
        self._piece_bytes = piece_bytes
        self._patience = patience
        self._snapshot: Snapshot | None = None
        self._unread = 0

    @property
    def in_use(self) -> bool:
        """Whether a piece was requested lately."""
        return self._snapshot is not None

    def tick(self) -> None:
        self._unread += 1
        if self._unread > self._patience:
            self._snapshot = None

    def piece(self, request: m.ReadSnapshotRequest) -> m.ReadSnapshotResponse:
        """The requested piece, or that it is gone."""
        if request.snapshot == 0:
            self._snapshot = self._journal.snapshot()
        snapshot = self._snapshot
        if snapshot is not None and request.snapshot in (0, snapshot.identity):
            try:
                piece = snapshot.piece(request.part, request.position, self._piece_bytes)
            except Gone:
                self._snapshot = None
            else:
                self._unread = 0
                return m.ReadSnapshotResponse(
                    request.epoch, snapshot.identity, request.part, request.position, *piece
                )
        return m.ReadSnapshotResponse(request.epoch, 0, request.part, request.position, b"", False, False)


class Pulling:
    """The receiver's side: one snapshot of one leader, from its first piece to its installation.

    Pieces of an earlier snapshot of the same leader may still arrive. A snapshot that does not end above
    `above` is an earlier one; it would remove entries acknowledged since."""

    def __init__(self, journal: Journal, leader: Member, promise: Promise, above: int) -> None:
        self.leader = leader
        self.promise = promise
        self._above = above
        self.received = 0
        self.is_complete = False
        self._journal = journal
        self._begin()

    def _begin(self) -> None:
        self._installation = self._journal.begin_install()
        self._snapshot = 0
        self._part = 0
        self._position = 0

    def request(self) -> Send:
        """The next request, or the last one again."""
        asked = m.ReadSnapshotRequest(self.promise.epoch, self._snapshot, self._part, self._position)
        return Send(self.leader, asked)

    def take(self, response: m.ReadSnapshotResponse) -> bool:
        """Take a piece; gives whether to request the next one at once. An earlier or repeated piece changes
        nothing. After an unusable one the transfer restarts at the next tick, or the two sides could answer
        each other for ever."""
        if (response.part, response.position) != (self._part, self._position):
            return False
        if response.snapshot == 0:
            if not self._snapshot:
                return False
            self._begin()
            return False
        if self._snapshot not in (0, response.snapshot):
            return False
        self._snapshot = response.snapshot
        try:
            self._installation.put(
                response.part, response.position, response.data, response.last, response.done
            )
        except BadSnapshot:
            self._begin()
            return False
        if self._installation.index is not None and self._installation.index <= self._above:
            self._begin()
            return False
        self.received += len(response.data)
        if response.last:
            self._part, self._position = self._part + 1, 0
        else:
            self._position += len(response.data)
        self.is_complete = response.done
        return True

    def finish(self) -> None:
        """Replace the log by the snapshot, durably."""
        self._installation.finish(self.promise)

    def drop(self) -> None:
        self._installation.drop()

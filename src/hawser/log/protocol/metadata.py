"""The metadata of a shard in the store, and the arithmetic of its ensembles.

An election or a reconfiguration is safe because any two sets of members that can decide something, before
and after a change, have one in common:

| stalled change, phase | fenced        | ensemble after | what is in common                          |
|-----------------------|---------------|----------------|--------------------------------------------|
| none, or any PREPARE  | E             | E              | two majorities of E                        |
| swap, COMMIT          | E and the new | the changed E  | of N + 1 members, N are in the changed E   |
| expand, COMMIT        | E and the new | the changed E  | majorities of N and of N + 1, in N + 1     |
| contract, COMMIT      | E             | E, rolled back | a majority of N without the old, of N - 1  |

`tests/unit/log/protocol/test_quorums.py` checks each row for every subset.
"""

from enum import StrEnum
from typing import Self

import msgspec

from hawser.log.entry import EntryId
from hawser.log.protocol.messages import Change, ChangeKind, Member

__all__ = ["Metadata", "Phase", "Status", "majority"]


def majority(members: int) -> int:
    """The size of a majority of `members`."""
    assert members > 0
    return members // 2 + 1


class Status(StrEnum):
    STEADY = "steady"
    ELECTION = "election"
    RECONFIGURATION = "reconfiguration"


class Phase(StrEnum):
    PREPARE = "prepare"
    COMMIT = "commit"


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a shard. Version and epoch only grow; every write is a compare-and-set.

    `writer` identifies the operator process that wrote it, so that no two operators use the same epoch.
    `removed` are former members that still have to delete their data. `copies` is the wanted number of
    members: the initial one, or the one after an order to expand or contract; a repair does not change it.
    """

    version: int
    epoch: int
    status: Status
    members: tuple[Member, ...]
    copies: int
    writer: str = ""
    leader: Member | None = None
    change: Change | None = None
    phase: Phase | None = None
    new_head: EntryId | None = None
    removed: tuple[Member, ...] = ()

    @classmethod
    def initial(cls, members: tuple[Member, ...]) -> Self:
        """A new shard, before its first election."""
        return cls(version=1, epoch=0, status=Status.ELECTION, members=members, copies=len(members))

    def next(self, **changes: object) -> Self:
        """The version after this one."""
        return msgspec.structs.replace(self, version=self.version + 1, **changes)

    @property
    def decided_change(self) -> Change | None:
        """The stalled change that an election completes."""
        if self.change is None or self.phase is not Phase.COMMIT or self.change.kind is ChangeKind.CONTRACT:
            return None
        return self.change

    @property
    def fencing_ensemble(self) -> tuple[Member, ...]:
        """The members that an election fences; a majority of them must answer."""
        change = self.decided_change
        return self.members if change is None or change.new is None else (*self.members, change.new)

    @property
    def final_ensemble(self) -> tuple[Member, ...]:
        """The members after an election, among them the leader."""
        change = self.decided_change
        return self.members if change is None else change.applied_to(self.members)

"""The states of the protocol and their transitions. The code asserts them, `docs/protocol.md` is drawn from
them, and the simulator checks that each one occurs."""

from enum import StrEnum
from typing import Final

from hawser.log.protocol import messages as m
from hawser.log.protocol.messages import Role

__all__ = ["ACTIVITIES", "CURSORS", "EXCHANGES", "ROLES", "Activity", "CursorState"]


class CursorState(StrEnum):
    """The state of a follower as its leader knows it; only an attached one counts for a commit."""

    UNKNOWN = "unknown"  # it has not said where its log ends
    TRUNCATE = "truncate"  # it was asked to cut a tail that the leader does not have
    SNAPSHOT = "snapshot"  # it was told to pull one: its next entry is gone
    ATTACHED = "attached"  # its head is in the leader's log; entries flow
    REMOVING = "removing"  # a reconfiguration is about to take it out


class Activity(StrEnum):
    """The activities of an operator for a shard."""

    WAITING = "waiting"  # another operator's election or change is under way, or nothing is known yet
    WATCHING = "watching"  # the shard is steady
    FENCING = "fencing"  # an election collects heads
    APPOINTING = "appointing"  # the leader is chosen and has not answered
    PREPARING = "preparing"  # the leader has not answered to a change
    INSTALLING = "installing"  # the new member pulls its snapshot
    COMMITTING = "committing"  # the leader has not answered to the commit of a change


ROLES: Final[dict[Role, dict[Role, str]]] = {
    Role.NOT_MEMBER: {Role.FENCED: "fenced, or told by an operator or a leader"},
    Role.FENCED: {
        Role.FOLLOWER: "the leader's entries follow its own",
        Role.LEADER: "told to lead in the epoch it was fenced for",
    },
    Role.FOLLOWER: {Role.FENCED: "a higher epoch, or a restart"},
    Role.LEADER: {Role.FENCED: "a higher epoch that is not its own change, or a restart"},
}

CURSORS: Final[dict[CursorState, dict[CursorState, str]]] = {
    CursorState.UNKNOWN: {
        CursorState.ATTACHED: "its head is in the log",
        CursorState.TRUNCATE: "its head is not in the log",
        CursorState.SNAPSHOT: "what comes after its head is gone",
        CursorState.REMOVING: "a change takes it out",
    },
    CursorState.TRUNCATE: {
        CursorState.ATTACHED: "its new head is in the log",
        CursorState.SNAPSHOT: "what comes after its new head is gone",
        CursorState.REMOVING: "a change takes it out",
    },
    CursorState.SNAPSHOT: {
        CursorState.ATTACHED: "it has installed one",
        CursorState.TRUNCATE: "it had another head",
        CursorState.REMOVING: "a change takes it out",
    },
    CursorState.ATTACHED: {
        CursorState.SNAPSHOT: "retention has overtaken it",
        CursorState.REMOVING: "a change takes it out",
    },
    CursorState.REMOVING: {CursorState.UNKNOWN: "the change does not come"},
}

ACTIVITIES: Final[dict[Activity, dict[Activity, str]]] = {
    Activity.WAITING: {
        Activity.WATCHING: "another operator has made it steady",
        Activity.FENCING: "its patience ended, or the shard is new",
    },
    Activity.WATCHING: {
        Activity.FENCING: "no leader, a silent one, a stuck one, or an order",
        Activity.PREPARING: "an order to change the ensemble",
        Activity.WAITING: "another operator is at work",
    },
    Activity.FENCING: {
        Activity.APPOINTING: "heads from a majority of the fencing ensemble",
        Activity.WAITING: "another operator is at work",
        Activity.WATCHING: "another operator has made it steady",
    },
    Activity.APPOINTING: {
        Activity.WATCHING: "the leader answered, and the store has it",
        Activity.FENCING: "the leader did not answer",
        Activity.WAITING: "another operator is at work",
    },
    Activity.PREPARING: {
        Activity.INSTALLING: "the leader is prepared for a new member",
        Activity.COMMITTING: "the leader is prepared for a contraction",
        Activity.FENCING: "the leader is silent or leads no more",
        Activity.WAITING: "another operator is at work",
        Activity.WATCHING: "another operator has made it steady",
    },
    Activity.INSTALLING: {
        Activity.COMMITTING: "the new member has its snapshot",
        Activity.WATCHING: "the new member does not come: given up",
        Activity.FENCING: "the leader is silent or leads no more",
        Activity.WAITING: "another operator is at work",
    },
    Activity.COMMITTING: {
        Activity.WATCHING: "the leader has the new ensemble, and the store has it",
        Activity.FENCING: "the leader is silent or leads no more, or it is never safe",
        Activity.WAITING: "another operator is at work",
    },
}


OPERATOR: Final = "operator"
NODE: Final = "node"
LEADER: Final = "leader"
FOLLOWER: Final = "follower"
NEW: Final = "new member"
REMOVED: Final = "removed member"

# The sender and the receiver of each request, and its answer.
EXCHANGES: Final[tuple[tuple[type[m.Message], str, str, type[m.Message]], ...]] = (
    (m.FenceRequest, OPERATOR, NODE, m.FenceResponse),
    (m.BecomeLeaderRequest, OPERATOR, LEADER, m.BecomeLeaderResponse),
    (m.AddFollowerRequest, OPERATOR, LEADER, m.AddFollowerResponse),
    (m.TruncateRequest, LEADER, FOLLOWER, m.TruncateResponse),
    (m.AddEntriesRequest, LEADER, FOLLOWER, m.AddEntriesResponse),
    (m.HeartbeatRequest, LEADER, FOLLOWER, m.HeartbeatResponse),
    (m.SnapshotNeeded, LEADER, FOLLOWER, m.TruncateResponse),
    (m.PrepareReconfigurationRequest, OPERATOR, LEADER, m.PrepareReconfigurationResponse),
    (m.SnapshotRequest, OPERATOR, NEW, m.SnapshotResponse),
    (m.CommitReconfigurationRequest, OPERATOR, LEADER, m.CommitReconfigurationResponse),
    (m.AbortReconfigurationRequest, OPERATOR, LEADER, m.AbortReconfigurationResponse),
    (m.HandOverRequest, OPERATOR, LEADER, m.HandOverResponse),
    (m.RetireRequest, OPERATOR, REMOVED, m.RetireResponse),
    (m.StatusRequest, OPERATOR, NODE, m.StatusResponse),
    (m.ReadSnapshotRequest, FOLLOWER, LEADER, m.ReadSnapshotResponse),
)

"""Every error Hawser raises, under one root.

    HawserError
    ├── Rejected              certainly not done; nothing changed
    │   ├── UsageError          the call itself is wrong (is a ValueError)
    │   ├── SettingsMismatch    the topic exists with other settings
    │   ├── Full                no room now: a limit, a reliable subscriber or the memory
    │   ├── Closed              closed here, or deleted
    │   ├── Timeout             not within the given time (is a TimeoutError)
    │   ├── NotFound            nothing of that name
    │   ├── PermissionDenied    not ours to open (is a PermissionError)
    │   ├── Corrupt             bytes that cannot be what they should be
    │   ├── Lagged              too far behind to go on without a gap
    │   ├── OffsetOutOfRange    no longer kept, or not written yet
    │   ├── Fenced              a newer owner has taken over this identity
    │   ├── NotLeader           ask the leader instead
    │   ├── Unavailable         too few nodes to go on just now
    │   └── TransactionAborted  rolled back as a whole
    └── OutcomeUnknown        perhaps done
        └── InDoubt             prepared, and waiting for a decision

`retryable` says whether the same call may succeed later without any change to it. `outcome` says
what became of the request: "none" (no effect), "applied" (a first part took effect, see
`published`), "unknown" (ask before doing it again).
"""

from typing import Any, Literal

__all__ = [
    "Closed",
    "Corrupt",
    "Fenced",
    "Full",
    "HawserError",
    "InDoubt",
    "Lagged",
    "NotFound",
    "NotLeader",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PermissionDenied",
    "Rejected",
    "SettingsMismatch",
    "Timeout",
    "TransactionAborted",
    "Unavailable",
    "UsageError",
]


class HawserError(Exception):
    """Root of all errors of Hawser. The message says what happened, to what, and what to do."""

    retryable: bool = False
    outcome: Literal["none", "applied", "unknown"] = "none"
    published: int = 0
    """Of a batch: how many of its messages went out before the error. Of `retry_dead_letters` on a cluster:
    how many letters were moved."""
    read: Any = None
    """Of a read from a cluster: the ReadResult with what came before the error; None if nothing came."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class Rejected(HawserError):
    """Certainly not done."""


class UsageError(Rejected, ValueError):
    """A wrong argument, or a call that makes no sense in this state."""


class SettingsMismatch(Rejected):
    """A given setting contradicts the one the topic was made with, or its format is of another version."""


class Full(Rejected):
    """No room: a limit of the topic, a reliable subscriber in the way, or no memory left."""

    retryable = True


class Closed(Rejected):
    """The object was closed, or its topic was deleted."""


class Timeout(Rejected, TimeoutError):
    """It did not happen within the given time, and will not happen later."""

    retryable = True


class NotFound(Rejected):
    """There is nothing of that name."""


class PermissionDenied(Rejected, PermissionError):
    """The directory or file belongs to another user, or is not safe to use."""


class Corrupt(Rejected):
    """Stored bytes that Hawser cannot have written."""


class Lagged(Rejected):
    """The reader is so far behind that it cannot go on without a gap."""


class OffsetOutOfRange(Rejected):
    """The offset is no longer kept, or lies beyond the next one. A subscription raises it for a start that is
    not there, and on a cluster when the log was put back, as by a restored backup, and lacks records that the
    subscription has read. Records that retention has removed are counted as missed instead."""


class Fenced(Rejected):
    """A newer holder of the same identity has taken over."""


class NotLeader(Rejected):
    """This node does not lead the shard."""

    retryable = True


class Unavailable(Rejected):
    """Too few nodes answer to promise what was asked."""

    retryable = True


class TransactionAborted(Rejected):
    """The transaction was rolled back as a whole."""

    retryable = True


class OutcomeUnknown(HawserError):
    """Perhaps done: the answer was lost."""

    outcome = "unknown"


class InDoubt(OutcomeUnknown):
    """A prepared transaction whose decision is not known yet."""

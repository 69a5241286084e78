"""The base of all messages between processes, and the answer to a request that failed."""

from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

__all__ = ["MAX_SESSION_SECONDS", "MAX_WAIT_SECONDS", "Body", "Code", "Count", "Failed"]


Count = Annotated[int, Meta(ge=0)]


MAX_WAIT_SECONDS: Final = 60.0


MAX_SESSION_SECONDS: Final = 3600.0


class Body(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message: an array of its tag and its fields."""


class Code(StrEnum):
    """Why a request failed."""

    NOT_LEADER = "not leader"
    NOT_FOUND = "not found"
    BUSY = "busy"
    FULL = "disk full"
    QUEUE_FULL = "queue full"
    OUT_OF_RANGE = "out of range"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    REJECTED = "rejected"
    BAD_REQUEST = "bad request"
    DAMAGED = "damaged"
    OTHER_LOG = "other log"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> "Code":
        """A code of a newer node; the other fields of its answer say what to do."""
        return cls.OTHER


class Failed(Body, frozen=True, tag="failed"):
    """The request failed. `outcome` is "unknown" if it may have taken effect. `leader` is the node to ask
    instead, with its address; `start` and `end` are the bounds if the request was out of bounds."""

    code: Code
    text: str
    retryable: bool
    outcome: Literal["none", "applied", "unknown"] = "none"
    leader: tuple[str, str] | None = None
    start: int = 0
    end: int = 0

"""Requests of clients about queues, and their answers."""

from typing import Annotated

import msgspec
from msgspec import Meta

from hawser.cluster.wire.messages import MAX_SESSION_SECONDS, MAX_WAIT_SECONDS, Body, Count
from hawser.log.queue.claims import Token
from hawser.log.queue.dispatcher import DeliveryBatch

__all__ = [
    "Delivered",
    "Looked",
    "QueueGet",
    "QueueLock",
    "QueueLook",
    "QueuePut",
    "QueueSettle",
    "TokenRun",
    "Turned",
]


# Consecutive tokens of a queue's deliveries: epoch, number of the first, count.
TokenRun = tuple[Count, Count, Annotated[int, Meta(ge=1)]]


class QueuePut(Body, frozen=True, tag="put"):
    """As `Publish`, for the shard of a queue."""

    shard: str
    batch: bytes
    follows: Count = 0


class QueueGet(Body, frozen=True, tag="get"):
    """Asks for messages for a session, as `hawser.log.queue.dispatcher.Get` has it. If there are none, it
    waits for them up to `wait_seconds` and then answers with none. It extends the session by
    `session_seconds` after the answer; the last request of a session ends it and releases what it holds. The
    session has shown its consumer all but `ahead` of the messages that it holds. With `for_transactions` the
    leader answers without confirming its leadership; a stale leader is detected at commit."""

    shard: str
    subqueue: Annotated[int, Meta(ge=0, le=1)]
    session: Annotated[str, Meta(min_length=1, max_length=200)]
    request: Annotated[int, Meta(ge=1)]
    received: Token
    most: Count
    most_bytes: Annotated[int, Meta(gt=0)]
    session_seconds: Annotated[float, Meta(gt=0, le=MAX_SESSION_SECONDS)]
    wait_seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)] = 0.0
    unseen: tuple[TokenRun, ...] = ()
    is_last: bool = False
    for_transactions: bool = False
    ahead: Count = 0


class QueueSettle(Body, frozen=True, tag="settle"):
    """Settles messages that the session holds, as `hawser.log.queue.dispatcher.Settlement` has it."""

    shard: str
    subqueue: Annotated[int, Meta(ge=0, le=1)]
    session: Annotated[str, Meta(min_length=1, max_length=200)]
    incarnation: Annotated[int, Meta(ge=1)]
    sequence: Annotated[int, Meta(ge=1)]
    accepted: tuple[TokenRun, ...] = ()
    released: tuple[TokenRun, ...] = ()
    rejected: tuple[TokenRun, ...] = ()


class QueueLook(Body, frozen=True, tag="look"):
    """Asks the leader of a queue for its current state, and for its oldest messages from `first` on, up to a
    limit; or for the messages `between` two offsets, also those that transactions hold."""

    shard: str
    subqueue: Annotated[int, Meta(ge=0, le=1)] = 0
    most: Count = 0
    most_bytes: Annotated[int, Meta(gt=0)] = 1
    between: tuple[Count, Count] | None = None
    first: Count = 0


class QueueLock(msgspec.Struct, frozen=True, array_like=True):
    """How a session accepts messages that it holds in a transaction. The entry, of kind QUEUE_SETTLE, travels
    with this payload; the leader that delivered the messages writes which messages these are."""

    subqueue: Annotated[int, Meta(ge=0, le=1)]
    session: Annotated[str, Meta(min_length=1, max_length=200)]
    tokens: tuple[TokenRun, ...]


class Delivered(Body, frozen=True, tag="lent"):
    """The messages that a session gets."""

    delivery_batches: tuple[DeliveryBatch, ...] = ()


class Turned(Body, frozen=True, tag="turned"):
    """The settlement had no effect and never will, because of these of its tokens."""

    text: str
    tokens: tuple[TokenRun, ...]


class Looked(Body, frozen=True, tag="looked"):
    """The state of one subqueue: its messages that are not accepted, how many of them consumers hold, and how
    many each session holds, by a digest of its id; the offset after the newest, and when the oldest arrived.
    The count of dead letters and the bytes are those of the whole queue. `delivery_batches` have no tokens.
    """

    count: int
    delivered: int
    holders: dict[str, int]
    end: int
    oldest_ns: int | None
    dead_letters: int
    used_bytes: int
    capacity_bytes: int
    delivery_batches: tuple[DeliveryBatch, ...] = ()

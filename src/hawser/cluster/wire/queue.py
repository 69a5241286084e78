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


# Tokens of a queue's claims, one behind the other: epoch, number of the first, how many.
TokenRun = tuple[Count, Count, Annotated[int, Meta(ge=1)]]


class QueuePut(Body, frozen=True, tag="put"):
    """As `Publish`, for the shard of a queue."""

    shard: str
    batch: bytes
    follows: Count = 0


class QueueGet(Body, frozen=True, tag="get"):
    """Messages for a session, as `hawser.log.queue.dispatcher.Get` has it; if there are none it waits up to
    `wait_seconds`, and then answers with none. The session is there for another `session_seconds` behind
    the answer, unless this is the last of it: then what it holds is given back. It has shown all but `ahead`
    of what it holds. For transactions it is lent what is there as far as the leader knows: their commits show
    whether it knew best."""

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
    """Ends deliveries of messages that the session holds, as `hawser.log.queue.dispatcher.Settlement`."""

    shard: str
    subqueue: Annotated[int, Meta(ge=0, le=1)]
    session: Annotated[str, Meta(min_length=1, max_length=200)]
    incarnation: Annotated[int, Meta(ge=1)]
    sequence: Annotated[int, Meta(ge=1)]
    accepted: tuple[TokenRun, ...] = ()
    released: tuple[TokenRun, ...] = ()
    rejected: tuple[TokenRun, ...] = ()


class QueueLook(Body, frozen=True, tag="look"):
    """What the leader of a queue knows to be true now, and its oldest messages from an offset on, up to so
    many; or those from one offset up to another, also the ones that transactions have."""

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
    """What a session is lent."""

    delivery_batches: tuple[DeliveryBatch, ...] = ()


class Turned(Body, frozen=True, tag="turned"):
    """The settlement had no effect and never will, because of these of its tokens."""

    text: str
    tokens: tuple[TokenRun, ...]


class Looked(Body, frozen=True, tag="looked"):
    """One subqueue: its messages that are not accepted, those of them that are delivered, and how many each
    session holds, by a digest of its id; the offset behind the newest, and when the oldest came. The count of
    dead letters and the bytes are those of the whole queue. `delivery_batches` have no tokens."""

    count: int
    lent: int
    holders: dict[str, int]
    end: int
    oldest_ns: int | None
    dead_letters: int
    used_bytes: int
    capacity_bytes: int
    delivery_batches: tuple[DeliveryBatch, ...] = ()

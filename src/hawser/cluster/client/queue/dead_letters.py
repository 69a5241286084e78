"""Retry of dead letters: move them back to the end of their queue.

Dead letters in the queue's own shard move in one log entry. Dead letters in another queue are put into the
queue and then accepted in the other one. Each is put once, however often the retry is interrupted and begun
again: 62 consecutive offsets of the other queue form a block, and each block has a producer in the queue. Bit
n of that producer's incarnation, which only grows, says that dead letter n of the block was put. A retry
reads the incarnation first, and only accepts the dead letters that were put already.

Two retries of one block at the same time do not know of each other: a dead letter that was put by one that
died before it accepted it may be put again by the other.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate, groupby
from typing import Final

import msgspec

from hawser.cluster.client.publish.stamped import StampedPartition
from hawser.cluster.client.queue.acknowledger import HeldMessage, State
from hawser.cluster.client.queue.handle import QueueHandle
from hawser.cluster.client.queue.session import MOST_HELD, QueueSession
from hawser.errors import Fenced, HawserError, NotFound, UsageError
from hawser.log.queue.dispatcher import MOST_MOVED_BYTES
from hawser.log.state.queue import DEAD_LETTERS
from hawser.record.batch import Batch
from hawser.record.metadata import DEAD_LETTER_HEADER
from hawser.record.record import Record, Stamp

__all__ = ["retry_dead_letters"]

# Dead letters received, and settled, together.
_TOGETHER: Final = 500
# The bits of an incarnation, 63, less one.
_BLOCK: Final = 62

_DeadLetter = tuple[HeldMessage, Record]


async def retry_dead_letters(queue: QueueHandle, count: int | None) -> int:
    """Move dead letters to the end of their queue, oldest first, and return how many were moved. Dead letters
    that arrive meanwhile, and those that a consumer holds, stay. UsageError for a queue of dead letters
    itself. `published` of any other error is the number moved before it."""
    if queue.subqueue == DEAD_LETTERS:
        raise UsageError(
            f"{queue.full_name!r} holds dead letters itself; retry them at the queue they are of"
        )
    try:
        dead_letters = await queue.dead_letters()
    except NotFound:
        return 0
    there = (await dead_letters.query_contents()).count
    wanted = there if count is None else min(count, there)
    queue_session, tally = dead_letters.queue_session(_letter), _Tally()
    try:
        if queue.dead_letter_queue is None:
            await _move_back(queue_session, wanted, tally)
        else:
            await _put_back(queue, queue_session, wanted, there, tally)
        return tally.moved
    except HawserError as error:
        error.published = tally.moved
        if tally.moved and error.outcome == "none":
            error.outcome = "applied"
        raise
    finally:
        await dead_letters.release(queue_session)


def _letter(held_message: HeldMessage, record: Record, *_: object) -> _DeadLetter:
    return held_message, record


class _Tally:
    """The number of dead letters moved so far."""

    moved = 0


async def _move_back(queue_session: QueueSession, wanted: int, tally: _Tally) -> None:
    """Move dead letters within the queue's shard: rejecting one moves it, in one log entry."""
    while tally.moved < wanted:
        got: list[_DeadLetter] = await queue_session.get(min(_TOGETHER, wanted - tally.moved), 0)
        if not got:
            break
        dead_letters = [held_message for held_message, _ in got]
        try:
            await queue_session.settle(dead_letters, "reject")
        except Fenced:
            wanted -= sum(each.state is State.LOST for each in dead_letters)
        tally.moved += sum(each.state is State.SETTLED for each in dead_letters)


async def _put_back(
    queue: QueueHandle, queue_session: QueueSession, wanted: int, there: int, tally: _Tally
) -> None:
    """Move dead letters from another queue: put each into `queue`, then accept it there. Dead letters of
    other queues stay."""
    partition = StampedPartition(queue, 0)
    looked_at: list[HeldMessage] = []
    try:
        while tally.moved < wanted and len(looked_at) < min(there, MOST_HELD):
            got: list[_DeadLetter] = await queue_session.get(_TOGETHER, 0)
            if not got:
                break
            looked_at += [held_message for held_message, _ in got]
            own = [dead_letter for dead_letter in got if _origin_of(dead_letter[1].headers) == queue.name]
            for _, block in groupby(own[: wanted - tally.moved], _block_of):
                dead_letters = list(block)
                await _put_block(partition, queue_session.shard, dead_letters, queue.client.seconds(None))
                # One whose lease is over was put all the same; the next retry finds its bit and accepts it.
                with suppress(Fenced):
                    await queue_session.settle([held_message for held_message, _ in dead_letters], "accept")
                tally.moved += len(dead_letters)
    finally:
        queue_session.give_back(looked_at)


def _block_of(dead_letter: _DeadLetter) -> int:
    return dead_letter[0].offset // _BLOCK


def _bit_of(dead_letter: _DeadLetter) -> int:
    return 1 << dead_letter[0].offset % _BLOCK


async def _put_block(
    partition: StampedPartition, shard: str, dead_letters: list[_DeadLetter], timeout_seconds: float
) -> None:
    """Put those dead letters of one block that were not put yet."""
    producer = f"retry:{shard}:{_block_of(dead_letters[0])}".encode()
    left = dead_letters
    while left:
        newest = (await partition.producer_state(producer, timeout_seconds)).newest
        there = 0 if newest is None else newest.incarnation
        left = [dead_letter for dead_letter in left if not there & _bit_of(dead_letter)]
        part = _fitting(left)
        if part:
            stamp = Stamp(producer, there | sum(map(_bit_of, part)), 1)
            batch = Batch.of([_without_origin(record) for _, record in part], stamp)
            if await partition.publish(batch, timeout_seconds) is not None:
                left = left[len(part) :]


def _fitting(dead_letters: list[_DeadLetter]) -> list[_DeadLetter]:
    """The first dead letters that fit into one batch; at least one."""
    sizes = accumulate(held_message.nbytes for held_message, _ in dead_letters)
    count = sum(size <= MOST_MOVED_BYTES for size in sizes)
    return dead_letters[: max(1, count)]


def _origin_of(headers: Mapping[str, bytes]) -> str | None:
    """The queue in which the message became a dead letter; None if it is not a dead letter."""
    try:
        return str(msgspec.json.decode(headers[DEAD_LETTER_HEADER])["queue"])
    except (KeyError, TypeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _without_origin(record: Record) -> Record:
    headers = {name: value for name, value in record.headers.items() if name != DEAD_LETTER_HEADER}
    return record._replace(headers=headers)

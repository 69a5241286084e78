"""Dead letters, back to the queue where they were.

From another queue each comes back once, however often that is begun and broken off. Its offset there belongs
to a block, and each block has a producer here whose incarnations say which of its letters were put: the bits
of a number, which only grows. Whoever begins reads it first, and only accepts those that are there already.
Two who retry letters of one block at the same time do not know of each other; of those, one that was put and
never accepted, because its mover died, may come again.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import accumulate, groupby
from typing import Final

import msgspec

from hawser.cluster.client.publish.stamped import StampedPartition
from hawser.cluster.client.queue.acknowledger import Borrowed, State
from hawser.cluster.client.queue.handle import OpenQueue
from hawser.cluster.client.queue.session import MOST_HELD, Borrower
from hawser.errors import Fenced, HawserError, NotFound, UsageError
from hawser.log.queue.dispatcher import MOST_MOVED_BYTES
from hawser.log.state.queue import LETTERS
from hawser.record.batch import Batch
from hawser.record.metadata import LETTER_HEADER
from hawser.record.record import Record, Stamp

__all__ = ["retry_letters"]

_TOGETHER: Final = 500
# An incarnation has 63 bits.
_BLOCK: Final = 62

_Letter = tuple[Borrowed, Record]


async def retry_letters(queue: OpenQueue, count: int | None) -> int:
    """Move dead letters to the end of their queue, oldest first, and return how many were moved. Dead letters
    that arrive meanwhile, and those that a consumer holds, stay. UsageError for a queue of dead letters
    itself. `published` of any other error is the number moved before it."""
    if queue.shelf == LETTERS:
        raise UsageError(
            f"{queue.full_name!r} holds dead letters itself; retry them at the queue they are of"
        )
    try:
        letters = await queue.letters()
    except NotFound:
        return 0
    there = (await letters.look_inside()).count
    wanted = there if count is None else min(count, there)
    borrower, tally = letters.borrower(_letter), _Tally()
    try:
        if queue.letters_to is None:
            await _move_back(borrower, wanted, tally)
        else:
            await _put_back(queue, borrower, wanted, there, tally)
        return tally.moved
    except HawserError as error:
        error.published = tally.moved
        if tally.moved and error.outcome == "none":
            error.outcome = "applied"
        raise
    finally:
        await letters.release(borrower)


def _letter(borrowed: Borrowed, record: Record, *_: object) -> _Letter:
    return borrowed, record


class _Tally:
    """The number of dead letters moved so far."""

    moved = 0


async def _move_back(borrower: Borrower, wanted: int, tally: _Tally) -> None:
    """Rejecting a dead letter moves it, in one entry."""
    while tally.moved < wanted:
        got: list[_Letter] = await borrower.get(min(_TOGETHER, wanted - tally.moved), 0)
        if not got:
            break
        letters = [borrowed for borrowed, _ in got]
        try:
            await borrower.settle(letters, "reject")
        except Fenced:
            wanted -= sum(each.state is State.LOST for each in letters)
        tally.moved += sum(each.state is State.SETTLED for each in letters)


async def _put_back(queue: OpenQueue, borrower: Borrower, wanted: int, there: int, tally: _Tally) -> None:
    """From another queue: put here, then accepted there. Letters of others are left alone."""
    partition = StampedPartition(queue, 0)
    looked_at: list[Borrowed] = []
    try:
        while tally.moved < wanted and len(looked_at) < min(there, MOST_HELD):
            got: list[_Letter] = await borrower.get(_TOGETHER, 0)
            if not got:
                break
            looked_at += [borrowed for borrowed, _ in got]
            own = [letter for letter in got if _origin_of(letter[1].headers) == queue.name]
            for _, block in groupby(own[: wanted - tally.moved], _block_of):
                letters = list(block)
                await _put_block(partition, borrower.shard, letters, queue.client.seconds(None))
                # One whose lease is over is there all the same, and the next who retries it finds it there.
                with suppress(Fenced):
                    await borrower.settle([borrowed for borrowed, _ in letters], "accept")
                tally.moved += len(letters)
    finally:
        borrower.give_back(looked_at)


def _block_of(letter: _Letter) -> int:
    return letter[0].offset // _BLOCK


def _bit_of(letter: _Letter) -> int:
    return 1 << letter[0].offset % _BLOCK


async def _put_block(
    partition: StampedPartition, shard: str, letters: list[_Letter], timeout_seconds: float
) -> None:
    """Put letters of one block, those that are not there yet."""
    producer = f"retry:{shard}:{_block_of(letters[0])}".encode()
    left = letters
    while left:
        newest = (await partition.standing(producer, timeout_seconds)).newest
        there = 0 if newest is None else newest.incarnation
        left = [letter for letter in left if not there & _bit_of(letter)]
        part = _fitting(left)
        if part:
            stamp = Stamp(producer, there | sum(map(_bit_of, part)), 1)
            batch = Batch.of([_without_origin(record) for _, record in part], stamp)
            if await partition.publish(batch, timeout_seconds) is not None:
                left = left[len(part) :]


def _fitting(letters: list[_Letter]) -> list[_Letter]:
    """The first of these that can be put together."""
    sizes = accumulate(borrowed.nbytes for borrowed, _ in letters)
    count = sum(size <= MOST_MOVED_BYTES for size in sizes)
    return letters[: max(1, count)]


def _origin_of(headers: Mapping[str, bytes]) -> str | None:
    """The queue that a dead letter was in; None if it is none."""
    try:
        return str(msgspec.json.decode(headers[LETTER_HEADER])["queue"])
    except (KeyError, TypeError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _without_origin(record: Record) -> Record:
    headers = {name: value for name, value in record.headers.items() if name != LETTER_HEADER}
    return record._replace(headers=headers)

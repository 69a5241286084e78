"""A queue: messages that are kept until they are accepted.

A queue has two subqueues. Messages are put on the first and are done when they are accepted. Messages that
were rejected, or failed in all their deliveries, move to the second, the dead letters; they are received from
there in the same way, or moved back. A move is one entry that carries the messages: they are done in one
subqueue and new in the other at the same time, and the log need not keep the old entries.

This state does not know which session holds a message: that is the soft state of the leader
(`hawser.log.queue.claims`). It knows how many deliveries of a message have *ended*, returned or taken back.
An entry that settles a message names that number and takes effect only if the message is not done and no
other delivery has ended meanwhile; so of two entries that end the same delivery only one takes effect. It
settles all its messages or none. A repeat, identified by its stamp as for a batch, changes nothing and gets a
result that says so. Delivery counts only grow, and a message is settled once.

A put without room is rejected; the bytes are counted here, so all replicas agree. An empty queue accepts any
put, and a move always has room. A transaction reserves room for its puts when it is prepared.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import msgspec

from hawser.log.entry import HEADER_BYTES, Entry, Kind
from hawser.log.state.commands import QueueLimit, QueueSettle, count_of, decoder
from hawser.log.state.part import BadState, Blocks, Context, Part
from hawser.log.state.producers import Producers
from hawser.log.state.results import Accepted, Limited, Reason, Rejected, Result, Settled
from hawser.log.state.subqueue import Subqueue
from hawser.record.batch import BadBatch, Header

__all__ = [
    "CAPACITY_BYTES",
    "DEAD_LETTERS",
    "MESSAGES",
    "MESSAGE_BYTES",
    "STEP_BYTES",
    "Queue",
    "is_sound",
    "size_of",
]

# The subqueues, as entries name them.
MESSAGES: Final = 0
DEAD_LETTERS: Final = 1

# The default capacity; the bytes added for each message, which also bound their number; the precision of the
# count (`subqueue.py`).
CAPACITY_BYTES: Final = 1 << 30
MESSAGE_BYTES: Final = 64
STEP_BYTES: Final = 64 << 10

_MOST_SETTLED: Final = (1 << 32) - 1

_read_limit = decoder(QueueLimit)
_read_settle = decoder(QueueSettle)
_BAD = Rejected(Reason.BAD_PAYLOAD)


class _State(msgspec.Struct, frozen=True, array_like=True):
    capacity_bytes: int
    messages: bytes
    dead_letters: bytes
    reserved_bytes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Queue(Part):
    """The messages and the dead letters of one queue. The members of a shard use the same `step_bytes`."""

    name: ClassVar = "queue"
    kinds: ClassVar = {Kind.QUEUE_PUT: 1, Kind.QUEUE_SETTLE: 1, Kind.QUEUE_LIMIT: 1}

    def __init__(self, page_places: int, step_bytes: int = STEP_BYTES) -> None:
        self._page_places = page_places
        self._step_bytes = step_bytes
        self.capacity_bytes = CAPACITY_BYTES
        self.reserved_bytes = 0
        self._handlers: dict[int, Callable[[Entry, Context], Result]] = {
            Kind.QUEUE_PUT: self._put,
            Kind.QUEUE_SETTLE: self._settle,
            Kind.QUEUE_LIMIT: self._limit,
        }

    def begin(self, blocks: Blocks) -> None:
        names = (self.name, f"{self.name}-letters")
        self.subqueues = tuple(Subqueue(blocks, name, self._page_places, self._step_bytes) for name in names)

    @property
    def messages(self) -> Subqueue:
        return self.subqueues[MESSAGES]

    @property
    def dead_letters(self) -> Subqueue:
        return self.subqueues[DEAD_LETTERS]

    @property
    def used_bytes(self) -> int:
        """The bytes that count against the capacity."""
        return self.messages.used_bytes + self.dead_letters.used_bytes + self.reserved_bytes

    @property
    def needed(self) -> int | None:
        needs = [subqueue.needed for subqueue in self.subqueues]
        return min((need for need in needs if need is not None), default=None)

    def apply(self, entry: Entry, context: Context) -> Result:
        return self._handlers[entry.kind](entry, context)

    def _put(self, entry: Entry, context: Context) -> Result:
        try:
            header = Header.read(entry.frame, HEADER_BYTES + entry.transaction_size)
        except BadBatch:
            return _BAD
        return self.put(header, entry, context)

    def put(self, header: Header, entry: Entry, context: Context) -> Result:
        """Add the batch of this entry."""
        name, count = header.producer, header.records
        producers = context.part(Producers)
        verdict = self.judge(header, len(entry.frame), producers)
        if verdict is not None:
            return verdict
        first = self.messages.append(entry.index, count, header.latest_ns, size_of(entry, count))
        if name:
            producers.accept(name, header.incarnation, header.sequence, first, count)
        return Accepted(first, count)

    def has_room(self, size_bytes: int) -> bool:
        """Whether this many more bytes may be put or reserved."""
        used_bytes = self.used_bytes
        return not used_bytes or used_bytes + size_bytes <= self.capacity_bytes

    def judge(self, header: Header, frame_bytes: int, producers: Producers) -> Result | None:
        """The result of a batch with a frame of this size if it is not accepted, otherwise None. Changes
        nothing. A leader asks before it proposes: an entry that is refused when applied still uses the log,
        and a full queue keeps the log from being shortened."""
        if header.producer:
            verdict = producers.judge(header.producer, header.incarnation, header.sequence)
            if verdict is not None:
                return verdict
        size_bytes = frame_bytes + MESSAGE_BYTES * header.records
        if not self.has_room(size_bytes):
            return Rejected(Reason.QUEUE_FULL, self.used_bytes, size_bytes)
        return None

    def _settle(self, entry: Entry, context: Context) -> Result:
        command = _read_settle(entry)
        if command is None or not is_sound(command):
            return _BAD
        name = command.consumer
        producers = context.part(Producers)
        verdict = producers.judge(name, command.incarnation, command.sequence) if name else None
        if verdict is not None:
            return verdict
        subqueue = self.subqueues[command.subqueue]
        for first, count, deliveries in sorted(command.runs):
            if not subqueue.are_there(first, count, deliveries):
                return Rejected(Reason.NOT_HELD, 0, subqueue.first_other(first, deliveries))
        moved_first = self._carry_out(command, entry)
        if name:
            first = min(command.runs)[0]
            producers.accept(name, command.incarnation, command.sequence, first, count_of(command.runs))
        return Settled(
            count_of(command.accepted), count_of(command.returned), count_of(command.moved), moved_first
        )

    def _carry_out(self, command: QueueSettle, entry: Entry) -> int:
        """Settle; gives the offset in the other subqueue of the first moved message, or 0."""
        subqueue, other = self.subqueues[command.subqueue], self.subqueues[1 - command.subqueue]
        for first, count, deliveries in command.returned:
            subqueue.give_back(first, count, deliveries)
        for first, count, _ in (*command.accepted, *command.moved):
            subqueue.settle(first, count)
        if not command.batch:
            return 0
        header = Header.read(command.batch)
        size_bytes = size_of(entry, header.records)
        return other.append(entry.index, header.records, header.latest_ns, size_bytes)

    def _limit(self, entry: Entry, context: Context) -> Result:
        command = _read_limit(entry)
        if command is None:
            return _BAD
        self.capacity_bytes = command.capacity_bytes
        return Limited(self.capacity_bytes, self.used_bytes)

    def save(self) -> tuple[bytes, Sequence[str]]:
        messages, names = self.messages.save()
        dead_letters, more_names = self.dead_letters.save()
        state = _State(self.capacity_bytes, messages, dead_letters, self.reserved_bytes)
        return _encode(state), [*names, *more_names]

    def load(self, state: bytes) -> None:
        try:
            saved = _decode(state)
        except msgspec.DecodeError as error:
            raise BadState(f"the saved queue cannot be read: {error}") from error
        self.capacity_bytes = saved.capacity_bytes
        self.reserved_bytes = saved.reserved_bytes
        self.messages.load(saved.messages)
        self.dead_letters.load(saved.dead_letters)

    def digest(self) -> bytes:
        subqueues = [subqueue.observe() for subqueue in self.subqueues]
        return _encode((self.capacity_bytes, self.reserved_bytes, subqueues))


def size_of(entry: Entry, count: int) -> int:
    """The bytes that the `count` messages of this entry use."""
    return len(entry.frame) + MESSAGE_BYTES * count


def is_sound(command: QueueSettle) -> bool:
    """Whether it names at least one message, each once, has the records of moved ones, and a whole stamp or
    none."""
    behind = 0
    for first, count, _ in sorted(command.runs):
        if first < behind:
            return False
        behind = first + count
    try:
        carried = Header.read(command.batch).records if command.batch else 0
    except BadBatch:
        return False
    stamped = command.incarnation > 0 and command.sequence > 0
    return (
        0 < count_of(command.runs) <= _MOST_SETTLED
        and carried == count_of(command.moved)
        and (stamped if command.consumer else command.incarnation == command.sequence == 0)
    )

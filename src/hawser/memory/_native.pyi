"""Types of the native module: what C++ does for Python on one host.

Errors raised here are the classes of `hawser.errors`. Timeouts are seconds: None waits for ever,
0 does not wait. Every call checks the fork epoch and raises UsageError in a forked child.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, final

from typing_extensions import Buffer

FORMAT_VERSION: int

def configure(
    receipt_type: type,
    as_payload: Callable[[Any], Buffer],
    encode_metadata: Callable[[bytes | None, Mapping[str, bytes] | None], bytes | None],
    decode_metadata: Callable[[bytes], tuple[bytes | None, dict[str, bytes]]],
) -> None:
    """Called once at import: the NamedTuple class of receipts, what turns data that is not bytes into
    a buffer, and what turns key and headers into metadata and back."""

def boot_id() -> str: ...

@final
class Region:
    """The file of a topic or queue, mapped. Holds the file's use lock for as long as it is open."""

    @staticmethod
    def attach(path: str, lock_path: str, name: str, settings: dict[str, int | str] | None) -> Region:
        """Open the region at `path`, or create it when `settings` are given and nothing (or only a leftover
        of an earlier boot, or an ephemeral one without a living user) is there.

        `settings` has: kind ("topic", also if left out, or "queue"), slot_size, history, depth,
        max_publishers, max_subscribers, max_held, max_loans, ephemeral (0|1), group (0|1), schema (str);
        for a queue, whose history is 0, also max_deliveries (0: no bound), lease_ns (0: none), dead_letter
        (str, "": its own). `lock_path` is the domain's lock file. What exists is opened whatever its kind.
        Raises NotFound (settings None and no file), Corrupt, PermissionDenied, Full (tmpfs)."""

    @staticmethod
    def watch(path: str, lock_path: str, name: str) -> Region | None:
        """Look at the region at `path` without having it open: it holds no lock, keeps nothing alive, changes
        nothing and never waits. For glance, totals, state, participants and recover; close does nothing.
        None if there is none, or only one that is being removed or of an earlier boot. Raises Corrupt,
        PermissionDenied, SettingsMismatch (another format)."""

    kind: str  # "topic" or "queue"
    closed: bool  # whether it was removed
    path: str
    name: str
    uuid: str
    def settings(self) -> dict[str, int | str]: ...
    def publisher(self, name: str, *, exclusive: bool = False) -> Publisher: ...
    def subscriber(
        self,
        name: str,
        *,
        history: int = 0,
        start: int = 0,
        reliable: int = 0,
        record: str = "",
        commit: bool = False,
        max_lag: int = 0,
        max_held: int = 0,
        decode: Callable[[Sample], Any] | None = None,
        tracer: bool = False,
    ) -> Subscriber:
        """Join as a subscriber. The first sample is the oldest of the last `history` ones (clamped to
        the topic's history), or offset `start` if that is not 0 (OffsetOutOfRange when it is gone or
        further ahead than the next one). `reliable`: 0 no, 1 while it lives, 2 durable (needs
        `record`). `record`: name of the position kept in the region ("" none): found, the
        subscription goes on there; a second live holder is refused with UsageError. `commit`: the
        position moves by commit() instead of by releasing. `max_lag` (durable; 0 for ever): how far
        behind a dead holder may be before publishers stop waiting for it. `max_held` 0 means the
        topic's. `decode` is what `Sample.value` calls. `tracer`: at the place, and with the record, that
        are kept for one tracer, so that no other subscription can be refused for it; Full if there is one."""

    def consumer(
        self,
        name: str,
        *,
        max_held: int = 0,
        decode: Callable[[Message], Any] | None = None,
        dying: Callable[[Consumer], object] | None = None,
        reserve: bool = False,
    ) -> Consumer:
        """Join a queue as a consumer. `max_held` 0 means the queue's. `decode` is what `Message.value`
        calls. `dying` is called with the consumer when a claim, a slice of waiting, a release or a reject
        has found messages that must go to the dead letters; what it raises is printed. `reserve`: this one
        alone consumes while it lives, and after its death only a consumer of its name until
        `forget(name)`; refused with UsageError while there are others. Its deliveries are not counted, and
        its `max_held` may be that of all consumers together."""

    def queue_state(self) -> dict[str, Any]:
        """Of a queue: ready, claimed, dying (to go to the dead letters), moving (on their way to another
        queue), oldest_ns (when the oldest that is not done was put, 0 without), slots_pinned (kept until a
        move is over), owners: (name, pid, incarnation, claimed) of each consumer that has claimed some."""

    def pinning(self) -> set[int]:
        """For a queue: the numbers (the first 8 bytes of the uuid) of the regions from which messages are
        being moved here, or were when their mover died. Each of these messages pins a slot."""

    def unpin(self, number: int) -> int:
        """Free the slots pinned for messages of the region of that number, and return how many were freed.
        Only for a deleted region: one seen to be missing after `pinning` had named it."""

    def peek(self, count: int, decode: Callable[[Sample], Any] | None = None) -> list[Sample]:
        """Copies of the `count` oldest messages of a queue that are not done, claimed ones too."""

    def participants(self) -> list[dict[str, Any]]:
        """One dict a participant: index, kind ("publisher"|"subscriber", of a queue "producer"|"consumer"),
        name, pid, uid, incarnation, state ("active"|"dead"), alive (bool), started_ns (process start, boot
        clock), joined_ns (wall clock), reliable ("" | "reliable" | "durable"), cursor, count (samples
        published or received), missed, held (bits, claims or loans it owns now)."""

    def participant_name(self, owner: int) -> str:
        """The name of the participant with this owner word (incarnation << 16 | index + 1), also when it has
        left or died; empty once its place was taken by another one."""

    def records(self) -> list[dict[str, Any]]:
        """Positions kept by name: name, mark, durable (bool), max_lag, held (by a living one)."""

    def forget(self, record: str) -> bool:
        """Drop a kept position that no participant holds; False without one. UsageError while it is held."""

    def recover(self) -> list[dict[str, Any]]:
        """Recover every dead participant; one dict each: kind, name, pid, incarnation, slots (loans
        returned), claims (messages given back), references (bits cleared), complete (False: another
        recoverer has it)."""

    def state(self) -> dict[str, int]:
        """head, oldest, ring, slots, slots_lent, slots_referenced, slots_carried, slots_free,
        slots_leaked (held by no living or active participant), file_bytes, resident_bytes, created_ns,
        recoveries."""

    def glance(self) -> tuple[bool, bool]:
        """Whether recover() would find a dead participant, and whether a process has the region open, this
        one included unless it only watches. Closed if it was removed."""

    def totals(self) -> tuple[dict[str, int], dict[str, int]]:
        """Of all publishers and of all subscribers there ever were: alive, dead (not yet recovered), count
        (samples published or received), missed, deaths (recovered). The last three never go back. Closed if
        it was removed."""

    def read_oldest(
        self, count: int, after: int, decode: Callable[[Sample], Any] | None = None
    ) -> tuple[list[Sample], int, int]:
        """Copies: (samples oldest first, last offset read or `after`, missed)."""

    def read_newest(
        self, count: int, after: int, decode: Callable[[Sample], Any] | None = None
    ) -> tuple[list[Sample], int, int]: ...
    def offset_at(self, timestamp_ns: int) -> int:
        """Offset of the first kept sample at or after that wall-clock time, else head + 1."""

    tracing: tuple[int, int, int]  # identity of the ring traced to (0: off), level, records not written
    def trace(self, ring: TraceRing | None, level: int = 1, *, only_from: int | None = None) -> bool:
        """Trace to this ring from now on, at level 1 (what happens), 2 (payloads, too) or 3 (what happens,
        while an observer runs); None: no more. `only_from`: only if the level is that one now (0:
        off), else False. Takes effect in every process at its next operation, and is told in the ring that
        the region leaves and in the one that it goes to. The ring must be the domain's `.trace`: a process
        that has not mapped it and cannot open it, or finds another one there, goes on untraced, and counts
        what it did not write; one that has goes on writing to it, also when it was removed, until the switch
        names another."""

    def remove(self, force: bool) -> bool:
        """Close the topic for everyone and unlink it. Without force only if no other user is alive,
        else False. Joined participants then get Closed."""

    def close(self) -> None:
        """Let go. The mapping stays until the last sample and loan are gone. An ephemeral topic is
        removed by the last one out."""

@final
class Publisher:
    kind: str  # "publisher" of a topic or "producer" of a queue
    name: str
    incarnation: int
    def publish(
        self,
        data: Any,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Copy in and publish; a receipt. Full when for longer than `timeout` a reliable subscriber is in the
        way, or a queue is full."""

    def publish_many(
        self,
        items: Iterable[Buffer],
        timeout: float | None = None,
        keys: Iterable[bytes | None] | None = None,
    ) -> Any:
        """In order; one receipt for all. If it fails in the middle, the error has `published`, the
        number that went out before it."""

    def loan(
        self,
        nbytes: int,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        timeout: float | None = None,
    ) -> Loan:
        """A slot to write into; key, headers and timeout are for the publish at its end."""

    def close(self) -> None: ...

@final
class Loan:
    """A slot to write into: `with topic.loan(n) as buffer` gives a writable memoryview of n bytes.

    Leaving the block publishes it; an exception drops it, as death does. Other views of the buffer
    still alive at the end raise BufferError, and nothing is published."""

    nbytes: int
    receipt: Any  # once the block has ended well; None before, and if nothing was published
    def __enter__(self) -> memoryview: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def _seal(self) -> None:
        """Take away the block's own view; BufferError if another view would stay."""

    def publish(self, timeout: float | None = None) -> Any:
        """BufferError while views of it are alive: nothing is published then, and the slot returns
        to the pool with the last view. After Full it may be tried again."""

    def _publish_keeping_views(self, timeout: float | None = None) -> Any:
        """As publish, but views made read-only by the caller may stay: the slot is not reused before
        the last of them is gone."""

    def drop(self) -> None:
        """Give the slot back, now or with the last view. What is published stays published."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Sample:
    """A message taken from a topic: a read-only buffer over its slot (or over a copy)."""

    data: memoryview
    offset: int
    timestamp_ns: int
    publisher: str
    key: bytes | None
    headers: dict[str, bytes]
    partition: int
    lost_before: int
    value: Any
    def array(self, dtype: Any = "u1", shape: Any = None) -> Any: ...
    def arrow(self) -> Any: ...
    def release(self) -> None: ...
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Subscriber:
    name: str
    incarnation: int
    missed: int
    received: int
    position: int  # offset of the last sample taken or missed
    held: int
    head: int  # offset of the newest sample of the topic
    def take(self, timeout: float | None = None) -> Sample | None: ...
    def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        """What is there, at most `count` and at most what `max_held` leaves; waits for the first."""

    def take_value(self, timeout: float | None = None) -> Any:
        """What `decode` makes of the next sample, or its bytes; None when the time is over."""

    def take_values(self, count: int, timeout: float | None = None) -> list[Any]:
        """As take_value, for what is there, at most `count`; waits for the first."""

    def take_columns(
        self, count: int, nbytes: int, timeout: float | None = None
    ) -> tuple[int, bytes, bytes, bytes, list[bytes] | None] | None:
        """Copies of what is there, as the columns of a batch: offset of the first message, timestamps (i64
        each), offsets of the values (i32, one more than messages), values, and the metadata of each if any
        has some. At most `count` messages, none missing between them, of at most `nbytes` with metadata.
        Waits for the first; None when the time is over; no message if the next one alone is larger: take()
        it."""

    def take_next(self, timeout: float | None = None) -> Sample | None:
        """For iteration: lets go of the sample it returned last (its slot stays while a view does),
        then takes."""

    def commit(self) -> None:
        """Keep the position reached by take() under the record's name."""

    def close(self) -> None:
        """Leave. Samples still held stay valid; the place is freed with the last of them."""

@final
class Message:
    """A message claimed from a queue: a read-only buffer over its slot. It is settled once, by
    accept, release or reject, or by leaving a `with` block: accept if it ended well, else release. From
    then on the slot goes with the last view. One that is dropped before is released. Saying it again does
    nothing; Fenced if the claim was taken away meanwhile, and nothing has changed."""

    data: memoryview
    offset: int
    timestamp_ns: int
    publisher: str
    key: bytes | None
    headers: dict[str, bytes]
    partition: int
    lost_before: int
    value: Any
    delivery_count: int  # this delivery included; stays at 1023
    redelivered: bool
    def array(self, dtype: Any = "u1", shape: Any = None) -> Any: ...
    def arrow(self) -> Any: ...
    def accept(self) -> None: ...
    def release(self) -> None: ...
    def reject(self) -> None: ...
    def __bytes__(self) -> bytes: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Claims:
    """Claims on messages that were copied, settled together: accept, release or reject those that are not
    settled yet. Fenced if claims were taken away; the others are settled. Dropped before: released."""

    offsets: list[int]
    delivery_counts: list[int]
    def __len__(self) -> int: ...
    def accept(self) -> None: ...
    def release(self) -> None: ...
    def reject(self) -> None: ...

@final
class Iteration:
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message: ...

@final
class ValueIteration:
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def accept(self) -> None:
        """The value given out last is done."""

    def release(self) -> None:
        """It goes back; as it does when another loop begins."""

    def reject(self) -> None:
        """It becomes a dead letter."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Consumer:
    name: str
    incarnation: int
    held: int
    closing: bool
    def claim(self, timeout: float | None = None) -> Message | None:
        """The oldest unclaimed message; None after the timeout. Full at `max_held`."""

    def claim_many(
        self, count: int, timeout: float | None = None, into: list[Any] | None = None
    ) -> list[Message]:
        """What is there, at most `count` and at most what `max_held` leaves; waits for the first. Appended to
        `into` if that is given."""

    def claim_apart(self, most: int, timeout: float | None = None) -> Message | None:
        """The next message of an iteration, which claims up to `most` at a time; None when the time has run
        out."""

    def iterate(self, most: int, owner: object) -> Iteration:
        """A loop of claim_apart, which ends when the consumer is closed here. It releases the message that it
        gave out last before it gets the next one. Keeps `owner` alive."""

    def iterate_values(self, most: int, owner: object) -> ValueIteration:
        """The same with copies, decoded or bytes. The one given out last is accepted when the next one is
        asked for, Fenced if its claim was taken away, and given back if none is."""

    def give_back_ahead(self) -> None:
        """Return messages that iteration has claimed and not given out, as if never claimed."""

    def claim_values(self, count: int, into: list[Any], timeout: float | None = None) -> Claims:
        """As claim_many, as copies, decoded or bytes, which are appended to `into`; none when the time is
        over. A message that cannot be decoded is given back, with the error if it is the first."""

    def claim_columns(
        self, count: int, nbytes: int, timeout: float | None = None
    ) -> tuple[int, bytes, bytes, bytes, list[bytes] | None, Claims] | None:
        """As Subscriber.take_columns, and the claims behind them."""

    def take_back(self, message: Message) -> None:
        """Release it, if it is still held; settling it later raises Fenced."""

    def accept_many(self, messages: Iterable[Message]) -> None:
        """Those that are still held. Fenced if claims were taken away; the others are accepted."""

    def release_many(self, messages: Iterable[Message]) -> None: ...
    def reject_many(self, messages: Iterable[Message]) -> None: ...
    def bury(self, publisher: Publisher, describe: Callable[[bytes, int, int], bytes | None]) -> int:
        """Move dying messages to the queue of `publisher`, the oldest first, each exactly once even if
        processes are killed; how many. `describe(metadata, offset, deliveries)` gives the metadata over
        there, or None to leave that message. One that does not fit with it goes with its own; one that does
        not fit at all stays, and UsageError says so when the others are moved. Stops when the other queue is
        full, with Full if that has no room for any."""

    def retry(
        self, publisher: Publisher, describe: Callable[[bytes, int, int], bytes | None], count: int = ...
    ) -> int:
        """The same for messages that any consumer may claim, and those of an interrupted move."""

    def close(self) -> None:
        """Give back what is claimed, and leave. Views stay valid; the place is freed with the last of
        them."""

@final
class TraceRing:
    """The ring of a domain's trace, and one reader of it. Holds no lock; works in a forked child, too."""

    @staticmethod
    def create(path: str, records: int, group: bool) -> TraceRing:
        """The ring at `path`: the one that is there, whatever its size, or a new one for at least `records`
        records (a power of two, 16 to 2^24), complete or not at all, its memory reserved. One of an earlier
        boot is replaced. Raises Full (tmpfs), Corrupt, PermissionDenied, SettingsMismatch (another
        format)."""

    @staticmethod
    def open(path: str) -> TraceRing | None:
        """None if there is none, or only one of an earlier boot. Raises as create does."""

    uuid: bytes  # 16 of them; another one each time it is made
    identity: int  # what `Region.tracing` calls it: the first 8 bytes of the uuid, the low 2 bits cleared
    records: int  # how many it has room for
    head: int  # the next position; those before it are written, being written or lost
    created_ns: int
    current: bool  # whether the path still leads to this ring
    def read(self, position: int, maximum: int) -> tuple[int, bytes]:
        """Whole records of 64 bytes, at most `maximum`, one a position from the first on, and that first
        position: those between `position` and it are lost. No bytes: nothing yet; ask again from there on.
        Never waits. What was taken by a writer that is killed or stopped is lost when it has been missing
        for a second of this reader's calls. Corrupt if `position` is ahead of the head, or the head cannot
        be: then the ring is another one, or damaged, and to be removed."""

@final
class Waiter:
    """Waits for many participants at once (futex_waitv), for one thread."""

    def wait(
        self, waiting: list[Subscriber | Publisher | Consumer], timeout: float
    ) -> list[Subscriber | Publisher | Consumer]:
        """Those with something to do: a sample, a message, space, or an end. Without the GIL while asleep."""

    def wake(self) -> None:
        """End the current or the next wait at once; any thread may call it."""

@final
class Syncs:
    """Files that are synced to the disk by threads that never need the GIL."""

    def __init__(self, threads: int) -> None: ...
    def fileno(self) -> int:
        """Readable when some have ended."""

    def begin(self, wanted: list[tuple[int, list[int]]]) -> None:
        """Each a number, and descriptors that stay open until it has ended: their data is synced, of one
        after the other, of several at the same time."""

    def ended(self) -> list[tuple[int, int, float]]:
        """Those that have ended since the last call, each once: its number, 0 or the errno of the first
        file that could not be synced, and the seconds that it took."""

    def close(self) -> None:
        """The threads go when what was begun has ended; nothing is to be begun from here on."""

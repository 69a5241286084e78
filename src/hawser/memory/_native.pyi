"""Types of the native module: what C++ does for Python on one host.

Errors raised here are the classes of `hawser.errors`. Timeouts are seconds: None waits for ever,
0 does not wait. Every call checks the fork epoch and raises UsageError in a forked child.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, final

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
    """One topic's file, mapped. Holds the file's use lock for as long as it is open."""

    @staticmethod
    def attach(path: str, lock_path: str, name: str, settings: dict[str, int | str] | None) -> Region:
        """Open the region at `path`, or create it when `settings` are given and nothing (or only a
        leftover of an earlier boot, or an ephemeral one with nobody alive) is there.

        `settings` has exactly: slot_size, history, depth, max_publishers, max_subscribers, max_held,
        max_loans, ephemeral (0|1), group (0|1), schema (str). `lock_path` is the domain's lock file.
        Raises NotFound (settings None and no file), Corrupt, PermissionDenied, Full (tmpfs)."""

    @staticmethod
    def watch(path: str, lock_path: str, name: str) -> Region | None:
        """Look at the region at `path` without having it open: it holds no lock, keeps nothing alive, changes
        nothing and waits for nobody. For glance, totals, state, participants and recover; close does nothing.
        None if there is none, or only one that is being removed or of an earlier boot. Raises Corrupt,
        PermissionDenied, SettingsMismatch (another format)."""

    closed: bool  # whether somebody removed the topic
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
    ) -> Subscriber:
        """Join as a subscriber. The first sample is the oldest of the last `history` ones (clamped to
        the topic's history), or offset `start` if that is not 0 (OffsetOutOfRange when it is gone or
        further ahead than the next one). `reliable`: 0 no, 1 while it lives, 2 durable (needs
        `record`). `record`: name of the position kept in the region ("" none): found, the
        subscription goes on there; a second live holder is refused with UsageError. `commit`: the
        position moves by commit() instead of by releasing. `max_lag` (durable; 0 for ever): how far
        behind a dead holder may be before publishers stop waiting for it. `max_held` 0 means the
        topic's. `decode` is what `Sample.value` calls."""

    def participants(self) -> list[dict[str, Any]]:
        """One dict a participant: index, kind ("publisher"|"subscriber"), name, pid, uid,
        incarnation, state ("active"|"dead"), alive (bool), started_ns (process start, boot clock),
        joined_ns (wall clock), reliable ("" | "reliable" | "durable"), cursor, count (samples
        published or received), missed, held (bits or loans it owns now)."""

    def records(self) -> list[dict[str, Any]]:
        """Positions kept by name: name, mark, durable (bool), max_lag, held (bool, somebody lives)."""

    def forget(self, record: str) -> bool:
        """Drop a kept position nobody holds; False if there is none. UsageError while it is held."""

    def recover(self) -> list[dict[str, Any]]:
        """Recover every dead participant; one dict each: kind, name, pid, incarnation, slots
        (loans returned), references (bits cleared), complete (False: another recoverer has it)."""

    def state(self) -> dict[str, int]:
        """head, oldest, ring, slots, slots_lent, slots_referenced, slots_carried, slots_free,
        slots_leaked (held by nobody alive or active), file_bytes, resident_bytes, created_ns,
        recoveries."""

    def glance(self) -> tuple[bool, bool]:
        """Whether recover() would find somebody, and whether anybody has the region open, ourselves included
        unless we only watch. Closed if it was removed."""

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

    def remove(self, force: bool) -> bool:
        """Close the topic for everyone and unlink it. Without force only if nobody else is alive,
        else False. Joined participants then get Closed."""

    def close(self) -> None:
        """Let go. The mapping stays until the last sample and loan are gone. An ephemeral topic is
        removed by the last one out."""

@final
class Publisher:
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
        """Copy in and publish; a receipt. Full when a reliable subscriber is in the way for longer
        than `timeout`."""

    def publish_many(self, items: Iterable[Buffer], timeout: float | None = None) -> Any:
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
class Waiter:
    """Waits for many subscribers and publishers at once (futex_waitv), for one thread."""

    def wait(self, waiting: list[Subscriber | Publisher], timeout: float) -> list[Subscriber | Publisher]:
        """Those with something to do: a sample, space, or an end. Without the GIL while asleep."""

    def wake(self) -> None:
        """End the current or the next wait at once; any thread may call it."""

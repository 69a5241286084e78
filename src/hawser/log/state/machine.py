"""The state machine of a shard: it applies committed entries, with a result and a hash for each.

It is deterministic. Two machines that applied the same entries have the same state, results and hash, even if
one was saved and loaded in between. The hash after an entry depends on all entries and results so far, so the
members of a shard detect a difference at the next index they compare.

The parts (`part.py`) apply the entries; `hawser.transaction` adds further parts.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest

from hawser.log.entry import Entry, Kind
from hawser.log.state.groups import Groups
from hawser.log.state.log_time import LogTime
from hawser.log.state.part import BadState, Blocks, Context, Part, Unsupported
from hawser.log.state.producers import Producers
from hawser.log.state.queue import Queue
from hawser.log.state.results import Done, Result, encode_result
from hawser.log.state.terms import Terms
from hawser.log.state.topic import PAGE_PLACES, Topic

__all__ = ["Machine", "Saved", "shard_parts", "topic_parts"]

STATE_VERSION: Final = 4

_DONE: Final = Done()

PartType = TypeVar("PartType", bound=Part)


class Saved(NamedTuple):
    """The state through entry `index`, and the names of its blocks."""

    index: int  # type: ignore[assignment]  # hides the tuple's method of that name
    state: bytes
    blocks: tuple[str, ...]


class _State(msgspec.Struct, frozen=True, array_like=True):
    version: int
    applied: int
    hash: int
    parts: dict[str, bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


def topic_parts(page_places: int = PAGE_PLACES) -> tuple[Part, ...]:
    """The parts of a topic's partition; a block of the index holds `page_places` batches."""
    return (Topic(page_places), Terms(), Producers(), Groups(), LogTime())


def shard_parts(page_places: int = PAGE_PLACES) -> tuple[Part, ...]:
    """The parts of any shard: a topic's partition and a queue, of which it uses one. A member need not know
    what its shard is for; an unused part costs nothing."""
    return (*topic_parts(page_places), Queue(page_places))


class Machine:
    """The state behind the commit index of one shard.

    `applied` is the index of the last applied entry, 0 at first; `hash` the 64-bit hash at that index.
    """

    __slots__ = ("applied", "hash", "_context", "_handlers", "_parts", "_staging")

    def __init__(self, blocks: Blocks, parts: Sequence[Part] | None = None) -> None:
        """Takes parts that belong to no other machine; by default `shard_parts`."""
        self._parts = shard_parts() if parts is None else tuple(parts)
        self._context = Context(self._parts)
        self._handlers: dict[int, tuple[Callable[[Entry, Context], Result], int]] = {}
        self._staging: Callable[[Entry, Context], Result] | None = None
        names: set[str] = set()
        for part in self._parts:
            assert part.name not in names, f"two parts are called {part.name}"
            names.add(part.name)
            for kind, version in part.kinds.items():
                assert kind not in self._handlers, f"two parts want entries of kind {kind}"
                self._handlers[kind] = (part.apply, version)
            if part.transactional:
                assert self._staging is None, "two parts want the entries of transactions"
                self._staging = part.apply
            part.begin(blocks)
        self._handlers.setdefault(Kind.NOTHING, (_nothing, 1))
        self.applied = 0
        self.hash = 0

    def part(self, kind: type[PartType]) -> PartType:
        """The part of this class, for reading."""
        return self._context.part(kind)

    def apply(self, entry: Entry) -> Result:
        """Apply the entry at `applied + 1`. Every entry has a result; only an unknown kind or version raises
        Unsupported, without a change."""
        assert entry.index == self.applied + 1, (entry.index, self.applied)
        apply, known = self._handlers.get(entry.kind, (None, 0))
        if apply is None or not 0 < entry.version <= known:
            raise Unsupported(
                f"entry {entry.id} is of kind {entry.kind}, version {entry.version}; this program knows "
                f"version {known} of it. Start this member with the version of Hawser that the leader has"
            )
        if entry.transaction_size:
            apply = self._staging
            if apply is None:
                raise Unsupported(
                    f"entry {entry.id} belongs to a transaction, which this member cannot apply. "
                    "Start this member with the version of Hawser that the leader has"
                )
        result = apply(entry, self._context)
        self.applied = entry.index
        # The first four bytes are the checksum of the whole entry.
        self.hash = xxh3_64_intdigest(entry.frame[:4] + encode_result(result), self.hash)
        return result

    def knows(self, kind: int, version: int, transaction: bytes) -> bool:
        """Whether an entry like this can be applied."""
        known = self._handlers[kind][1] if kind in self._handlers else 0
        return 0 < version <= known and not (transaction and self._staging is None)

    @property
    def needed(self) -> int:
        """The lowest index whose entry may still be read; `applied + 1` if no applied entry may."""
        return self._needed_by(self._parts)

    def needed_without(self, kind: type[Part]) -> int:
        """The same, without the part of this kind."""
        return self._needed_by([part for part in self._parts if not isinstance(part, kind)])

    def _needed_by(self, parts: Sequence[Part]) -> int:
        needs = [part.needed for part in parts]
        return min((need for need in needs if need is not None), default=self.applied + 1)

    def save(self) -> Saved:
        """Save the state as of `applied`; writes new blocks. An error of `Blocks.write` changes nothing."""
        states: dict[str, bytes] = {}
        blocks: list[str] = []
        for part in self._parts:
            states[part.name], names = part.save()
            blocks.extend(names)
        assert len(set(blocks)) == len(blocks)
        state = _encode(_State(STATE_VERSION, self.applied, self.hash, states))
        return Saved(self.applied, state, tuple(blocks))

    def load(self, state: bytes) -> None:
        """Load a saved state into a new machine; a part that was not saved stays new. After BadState or
        Unsupported the machine is unusable."""
        assert not self.applied, "a state is loaded into a new machine"
        try:
            saved = _decode(state)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadState(f"the saved state cannot be read: {error}") from error
        known = {part.name for part in self._parts}
        if saved.version != STATE_VERSION or saved.parts.keys() - known:
            raise Unsupported(
                f"the saved state has version {saved.version} and the parts {sorted(saved.parts)}; this "
                f"program knows version {STATE_VERSION} and {sorted(known)}. Start this member with the "
                "version of Hawser that saved it"
            )
        for part in self._parts:
            if part.name in saved.parts:
                part.load(saved.parts[part.name])
        self.applied, self.hash = saved.applied, saved.hash

    def digest(self) -> int:
        """A 64-bit hash of everything observable, computed from the state itself. Slow; compare it with that
        of a machine at the same index."""
        seed = self.applied
        for part in self._parts:
            seed = xxh3_64_intdigest(part.name.encode() + part.digest(), seed)
        return seed


def _nothing(entry: Entry, context: Context) -> Result:
    return _DONE

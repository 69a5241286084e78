"""The promise of a member on disk (the file `vow`), with the journal's owner, the valid generation of files,
and the first entry that must exist.

The file has two slots of a page each, so a torn write damages at most one. A promise is written to the first
slot and synced, then to the second and synced again. Power loss leaves the old or the new promise; a flipped
bit in one slot leaves the other. The room is reserved when the journal is formatted, so a full disk cannot
prevent a promise.
"""

from typing import Final, Self

import msgspec

from hawser.log.journal import file_names
from hawser.log.journal.errors import Damaged
from hawser.log.journal.sealed import Broken, Magic, seal, unseal
from hawser.log.journal.storage import Storage
from hawser.log.protocol.events import Promise

__all__ = ["Identity", "PromiseFile"]

_SLOT_BYTES: Final = 4096
_SLOTS: Final = 2
_MAX_NAME_BYTES: Final = 1000


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """The owner of a journal."""

    shard: str
    member: str

    def check(self) -> Self:
        """The identity itself; ValueError if it is invalid."""
        for what, name in (("shard", self.shard), ("member", self.member)):
            if not 0 < len(name.encode()) <= _MAX_NAME_BYTES:
                raise ValueError(f"the name of a {what} has 1 to {_MAX_NAME_BYTES} bytes, not {name!r}")
        return self


class _Body(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    identity: Identity
    generation: int
    first: int
    promise: Promise


_decode: Final = msgspec.msgpack.Decoder(_Body).decode


class PromiseFile:
    """The content of the file; `generation` 0 means that the journal is being destroyed."""

    def __init__(self, storage: Storage, body: _Body) -> None:
        self._storage = storage
        self._body = body

    @classmethod
    def create(cls, storage: Storage, identity: Identity, generation: int) -> Self:
        """Create the file durably; it gets its name once it is whole."""
        promises = cls(storage, _Body(1, identity, generation, 1, Promise()))
        storage.create(file_names.NEW_PROMISE, _SLOTS * _SLOT_BYTES)
        promises._write_slots(file_names.NEW_PROMISE)
        storage.rename(file_names.NEW_PROMISE, file_names.PROMISE)
        storage.sync_names()
        return promises

    @classmethod
    def open(cls, storage: Storage) -> Self:
        """Open the newest whole slot, and make both equal."""
        if (size := storage.size(file_names.PROMISE)) != _SLOTS * _SLOT_BYTES:
            raise Damaged(file_names.PROMISE, 0, 0, f"it has {size} bytes, not {_SLOTS * _SLOT_BYTES}")
        slots = [storage.read(file_names.PROMISE, slot * _SLOT_BYTES, _SLOT_BYTES) for slot in range(_SLOTS)]
        bodies: list[_Body] = []
        reasons = []
        for slot in slots:
            try:
                bodies.append(_decode(unseal(Magic.PROMISE, slot)))
            except (Broken, msgspec.MsgspecError) as reason:
                reasons.append(str(reason))
        if not bodies:
            raise Damaged(file_names.PROMISE, 0, 0, " and ".join(reasons))
        promises = cls(storage, max(bodies, key=lambda body: body.sequence))
        if slots[0] != slots[1]:
            promises._write_slots(file_names.PROMISE)
        return promises

    @property
    def identity(self) -> Identity:
        return self._body.identity

    @property
    def generation(self) -> int:
        return self._body.generation

    @property
    def first(self) -> int:
        return self._body.first

    @property
    def promise(self) -> Promise:
        return self._body.promise

    def save(self, **changes: Promise | int) -> None:
        """Change `promise`, `generation` and `first` atomically and durably."""
        sequence = self._body.sequence + 1
        self._body = msgspec.structs.replace(self._body, sequence=sequence, **changes)
        self._write_slots(file_names.PROMISE)

    def _write_slots(self, name: str) -> None:
        data = seal(Magic.PROMISE, msgspec.msgpack.encode(self._body)).ljust(_SLOT_BYTES, b"\0")
        assert len(data) == _SLOT_BYTES
        for slot in range(_SLOTS):
            self._storage.write(name, slot * _SLOT_BYTES, data)
            self._storage.sync(name)

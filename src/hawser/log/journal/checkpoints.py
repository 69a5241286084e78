"""Checkpoints, and the blocks of state that they list.

A checkpoint says what the state was when everything through `index` had been applied, and which epochs wrote
those entries. It is written under another name, synced, and renamed: there is always a whole one. Blocks are
immutable files beside it; one that the last checkpoint does not list was never needed, or is not any more.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hawser.log.epochs import Epochs
from hawser.log.journal import names
from hawser.log.journal.failures import Damaged
from hawser.log.journal.sealed import Broken, Magic, seal, unseal
from hawser.log.journal.storage import Storage

__all__ = ["Blocks", "Checkpoint", "Record", "load", "save"]


class Checkpoint(msgspec.Struct, frozen=True):
    """The state behind entry `index`, and the names of the blocks that belong to it."""

    index: int
    state: bytes
    blocks: tuple[str, ...]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint as it lies on disk and travels in a snapshot."""

    shard: str
    sequence: int
    index: int
    pairs: tuple[tuple[int, int], ...]
    blocks: tuple[str, ...]
    state: bytes

    def packed(self) -> bytes:
        return seal(Magic.CHECKPOINT, msgspec.msgpack.encode(self))

    @staticmethod
    def unpacked(data: bytes) -> "Record":
        """Broken if it is not whole or makes no sense."""
        try:
            record = _decode(unseal(Magic.CHECKPOINT, data))
            record.epochs()
        except (msgspec.ValidationError, msgspec.DecodeError, AssertionError) as reason:
            raise Broken(f"not a checkpoint, {reason}") from reason
        return record

    def epochs(self) -> Epochs:
        """Of the entries 1 to `index`."""
        return Epochs(self.pairs, self.index)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.index, self.state, self.blocks)


_decode: Final = msgspec.msgpack.Decoder(Record).decode


def load(storage: Storage, generation: int, shard: str) -> Record | None:
    """The last durable one; None if there never was one, Damaged if it is not whole."""
    name = names.checkpoint_name(generation)
    if name not in storage.names():
        return None
    try:
        record = Record.unpacked(storage.read(name, 0, storage.size(name)))
    except Broken as reason:
        raise Damaged(name, 0, 0, f"bad checkpoint, {reason}") from reason
    if record.shard != shard:
        raise Damaged(name, 0, 0, f"it is a checkpoint of shard {record.shard}, not of {shard}")
    return record


def save(storage: Storage, generation: int, record: Record) -> None:
    """In place of the last one, durable when it returns; StorageFull changes nothing."""
    data = record.packed()
    new = names.new_checkpoint_name(generation)
    storage.create(new, len(data))
    storage.write(new, 0, data)
    storage.sync(new)
    # The blocks' names must be certain before the name that lists them can be.
    storage.sync_names()
    storage.rename(new, names.checkpoint_name(generation))
    storage.sync_names()


class Blocks:
    """The blocks of one generation."""

    def __init__(self, storage: Storage, generation: int, listed: Iterable[str] = ()) -> None:
        self._storage = storage
        self._generation = generation
        self._listed = set(listed)
        self._written: set[str] = set()

    def write(self, name: str, data: bytes) -> None:
        """Durable after `sync`. A name in the last checkpoint is taken; any other is replaced."""
        if name in self._listed:
            raise ValueError(f"block {name!r} is listed by the last checkpoint and cannot be written again")
        self.write_sealed(name, seal(Magic.BLOCK, data))

    def write_sealed(self, name: str, sealed: bytes) -> None:
        """The same for a block that has its header already."""
        file = names.block_name(self._generation, name)
        if name in self._written:
            self._storage.remove(file)
            self._written.discard(name)
        self._storage.create(file, len(sealed))
        self._storage.write(file, 0, sealed)
        self._written.add(name)

    def read(self, name: str) -> bytes:
        """Checked; Damaged if it is not whole."""
        return unseal(Magic.BLOCK, self.read_sealed(name))

    def read_sealed(self, name: str) -> bytes:
        """Checked, with its header."""
        file = names.block_name(self._generation, name)
        try:
            sealed = self._storage.read(file, 0, self._storage.size(file))
            unseal(Magic.BLOCK, sealed)
        except FileNotFoundError as reason:
            raise Damaged(file, 0, 0, "the block is missing") from reason
        except Broken as reason:
            raise Damaged(file, 0, 0, f"bad block, {reason}") from reason
        return sealed

    def check_known(self, wanted: Sequence[str]) -> None:
        """A ValueError names a block that was never written."""
        for name in wanted:
            if name not in self._listed and name not in self._written:
                raise ValueError(f"block {name!r} was not written; write it before it is listed")

    def sync(self, wanted: Sequence[str]) -> None:
        """What was written of these is on disk when this returns; their names are not."""
        for name in wanted:
            if name in self._written:
                self._storage.sync(names.block_name(self._generation, name))

    def keep(self, listed: Sequence[str]) -> None:
        """These are in the last checkpoint; all others are removed."""
        for name in (self._listed | self._written) - set(listed):
            self._storage.remove(names.block_name(self._generation, name))
        self._listed = set(listed)
        self._written.clear()

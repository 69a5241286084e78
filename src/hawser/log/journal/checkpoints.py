"""Checkpoints, and the blocks of state that they list.

A checkpoint says what the state was when everything through `index` had been applied, and which epochs wrote
those entries. It is written under another name, synced, and renamed: there is always a whole one. Blocks are
immutable files beside it; one that the last checkpoint does not list was never needed, or is not any more.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from hawser.log.epochs import Epochs
from hawser.log.journal import file_names
from hawser.log.journal.errors import Damaged
from hawser.log.journal.sealed import HEADER_BYTES, Broken, Magic, checksum_of, seal, unseal
from hawser.log.journal.storage import Storage

__all__ = ["Blocks", "Checkpoint", "Record", "check_block", "load", "save"]


class Checkpoint(msgspec.Struct, frozen=True):
    """The state behind entry `index`, and the names of the blocks that belong to it."""

    index: int
    state: bytes
    blocks: tuple[str, ...]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint as it lies on disk and travels in a snapshot. `listed` has each block's name and checksum,
    so that none can stand for another."""

    shard: str
    sequence: int
    index: int
    pairs: tuple[tuple[int, int], ...]
    listed: tuple[tuple[str, int], ...]
    state: bytes

    def packed(self) -> bytes:
        return seal(Magic.CHECKPOINT, msgspec.msgpack.encode(self))

    @staticmethod
    def unpacked(data: bytes) -> "Record":
        """Broken if it is not whole or makes no sense."""
        try:
            record = _decode(unseal(Magic.CHECKPOINT, data))
            record.epochs()
            for name in record.blocks:
                file_names.block_name(0, name)
        except (AssertionError, msgspec.MsgspecError, ValueError) as reason:
            raise Broken(f"not a checkpoint, {reason}") from reason
        return record

    def epochs(self) -> Epochs:
        """Of the entries 1 to `index`."""
        return Epochs(self.pairs, self.index)

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.listed)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.index, self.state, self.blocks)


_decode: Final = msgspec.msgpack.Decoder(Record).decode


def load(storage: Storage, generation: int, shard: str) -> Record | None:
    """The last durable one; None if there never was one, Damaged if it is not whole."""
    name = file_names.checkpoint_name(generation)
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
    new = file_names.new_checkpoint_name(generation)
    storage.create(new, len(data))
    storage.write(new, 0, data)
    storage.sync(new)
    # The blocks' names must be certain before the name that lists them can be.
    storage.sync_names()
    storage.rename(new, file_names.checkpoint_name(generation))
    storage.sync_names()


class Blocks:
    """The blocks of one generation."""

    def __init__(self, storage: Storage, generation: int, record: Record | None = None) -> None:
        self._storage = storage
        self._generation = generation
        self._listed = dict(record.listed) if record else {}
        self._written: dict[str, int] = {}

    def write(self, name: str, data: bytes) -> None:
        """Durable after `sync`. A name in the last checkpoint is taken; any other is replaced."""
        if name in self._listed:
            raise ValueError(f"block {name!r} is listed by the last checkpoint and cannot be written again")
        self.write_sealed(name, seal(Magic.BLOCK, data))

    def write_sealed(self, name: str, sealed: bytes) -> None:
        """The same for a block that has its header already."""
        file = file_names.block_name(self._generation, name)
        if self._written.pop(name, None) is not None:
            self._storage.remove(file)
        self._storage.create(file, len(sealed))
        self._storage.write(file, 0, sealed)
        self._written[name] = checksum_of(sealed)

    def read(self, name: str) -> bytes:
        """Checked; Damaged if it is not whole."""
        return self.read_sealed(name)[HEADER_BYTES:]

    def read_sealed(self, name: str) -> bytes:
        """Checked, with its header."""
        file = file_names.block_name(self._generation, name)
        try:
            sealed = self._storage.read(file, 0, self._storage.size(file))
            check_block(sealed, (self._listed | self._written)[name])
        except FileNotFoundError as reason:
            raise Damaged(file, 0, 0, "the block is missing") from reason
        except Broken as reason:
            raise Damaged(file, 0, 0, f"bad block, {reason}") from reason
        return sealed

    def listing(self, wanted: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """Names with checksums, for a checkpoint; a ValueError names a block that was never written."""
        known = self._listed | self._written
        for name in wanted:
            if name not in known:
                raise ValueError(f"block {name!r} was not written; write it before it is listed")
        return tuple((name, known[name]) for name in wanted)

    def sync(self, wanted: Sequence[str]) -> None:
        """What was written of these is on disk when this returns; their names are not."""
        for name in wanted:
            if name in self._written:
                self._storage.sync(file_names.block_name(self._generation, name))

    def keep(self, record: Record) -> None:
        """This is the last checkpoint; blocks that it does not list are removed."""
        listed = dict(record.listed)
        for name in self._listed | self._written:
            if name not in listed:
                self._storage.remove(file_names.block_name(self._generation, name))
        self._listed = listed
        self._written.clear()


def check_block(sealed: bytes, checksum: int) -> None:
    """Broken if this is not the whole block with that checksum."""
    if len(unseal(Magic.BLOCK, sealed)) + HEADER_BYTES != len(sealed):
        raise Broken("there are bytes behind its end")
    if checksum_of(sealed) != checksum:
        raise Broken("it is whole, but another one than the checkpoint lists")

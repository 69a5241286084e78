"""Checkpoints, and the blocks of state that they list.

A checkpoint has the state after entry `index` and the epochs of all entries up to it. It is written under
another name, synced and renamed, so a whole one always exists. Blocks are immutable files beside it; a block
that the last checkpoint does not list is not needed.
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
    """The state after entry `index`, and the names of its blocks."""

    index: int
    state: bytes
    blocks: tuple[str, ...]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint on disk and in a snapshot. `listed` has each block's name and checksum, so that blocks
    cannot be confused."""

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
        """The checkpoint in these bytes; Broken if they are incomplete or invalid."""
        try:
            record = _decode(unseal(Magic.CHECKPOINT, data))
            record.epochs()
            for name in record.blocks:
                file_names.block_name(0, name)
        except (AssertionError, msgspec.MsgspecError, ValueError) as reason:
            raise Broken(f"not a checkpoint, {reason}") from reason
        return record

    def epochs(self) -> Epochs:
        """The epochs of entries 1 to `index`."""
        return Epochs(self.pairs, self.index)

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.listed)

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.index, self.state, self.blocks)


_decode: Final = msgspec.msgpack.Decoder(Record).decode


def load(storage: Storage, generation: int, shard: str) -> Record | None:
    """The last checkpoint; None without one, Damaged if it is not whole."""
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
    """Replace the last checkpoint, durably; StorageFull changes nothing."""
    data = record.packed()
    new = file_names.new_checkpoint_name(generation)
    storage.create(new, len(data))
    storage.write(new, 0, data)
    storage.sync(new)
    # The names of the blocks must be durable before the checkpoint that lists them.
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
        """Write a block, durable after `sync`; replaces one that the last checkpoint does not list."""
        if name in self._listed:
            raise ValueError(f"block {name!r} is listed by the last checkpoint and cannot be written again")
        self.write_sealed(name, seal(Magic.BLOCK, data))

    def write_sealed(self, name: str, sealed: bytes) -> None:
        """Write a block that already has its header."""
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
        """Names with checksums, for a checkpoint; ValueError for a block that was never written."""
        known = self._listed | self._written
        for name in wanted:
            if name not in known:
                raise ValueError(f"block {name!r} was not written; write it before it is listed")
        return tuple((name, known[name]) for name in wanted)

    def sync(self, wanted: Sequence[str]) -> None:
        """Sync the contents of these blocks, but not their names."""
        for name in wanted:
            if name in self._written:
                self._storage.sync(file_names.block_name(self._generation, name))

    def keep(self, record: Record) -> None:
        """Make this the last checkpoint and remove the blocks it does not list."""
        listed = dict(record.listed)
        for name in self._listed | self._written:
            if name not in listed:
                self._storage.remove(file_names.block_name(self._generation, name))
        self._listed = listed
        self._written.clear()


def check_block(sealed: bytes, checksum: int) -> None:
    """Raises Broken unless this is the whole block with that checksum."""
    if len(unseal(Magic.BLOCK, sealed)) + HEADER_BYTES != len(sealed):
        raise Broken("there are bytes behind its end")
    if checksum_of(sealed) != checksum:
        raise Broken("it is whole, but another one than the checkpoint lists")

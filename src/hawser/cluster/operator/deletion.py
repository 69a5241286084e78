"""Shards that are being deleted: which members still hold what.

A shard leaves the store when every member that can be reached has deleted it. Those that are away are written
down first, under `retiring/` and the shard's name, and told when they come back. Nothing has to wait for a
machine that never does: a topic made anew under the same name has shards of other names.
"""

from collections.abc import Callable, Container
from typing import Final

import msgspec

from hawser.cluster.maps import node_of
from hawser.cluster.stores.shards import StoredShard
from hawser.cluster.stores.store import Conflict, Store
from hawser.log.protocol import messages as m

__all__ = ["Deletion", "Retiring", "forget_retiring", "keep_retiring", "list_retiring"]

_RETIRING: Final = "retiring/"


class Retiring(msgspec.Struct, frozen=True):
    """Members that were away when their shard was deleted in `epoch`."""

    epoch: int
    members: frozenset[str]


_decode = msgspec.json.Decoder(Retiring).decode


class Deletion:
    """Which members of a shard still have to delete it; `stored` is what the store has of it, if anything."""

    def __init__(self, shard: str, epoch: int, members: set[str], stored: StoredShard | None = None) -> None:
        self.shard = shard
        self.stored = stored
        self.epoch = epoch
        self.members = frozenset(members)
        self.remaining = members
        self._told = 0

    @classmethod
    def of(cls, shard: str, stored: StoredShard) -> "Deletion":
        """Of a shard in the store: everybody who may hold something of it."""
        metadata = stored.metadata
        change = metadata.change
        new = (change.new,) if change is not None and change.new is not None else ()
        members = {*metadata.members, *metadata.removed, *new}
        return cls(shard, metadata.epoch + 1, members, stored)

    def tell(self, send: Callable[[str, str, m.Message], None]) -> None:
        self._told += 1
        for member in self.remaining:
            send(self.shard, member, m.RetireRequest(self.epoch))

    def is_done(self, alive: Container[str], patience: int) -> bool:
        """Whether only members on nodes that are not alive are left, told `patience` times in vain."""
        if not self.remaining:
            return True
        return self._told > patience and not any(node_of(member) in alive for member in self.remaining)


def list_retiring(store: Store) -> dict[str, Retiring]:
    """By shard, who has to be told yet."""
    found = store.list(_RETIRING)
    return {key.removeprefix(_RETIRING): _decode(value.data) for key, value in found.items()}


def keep_retiring(store: Store, shard: str, retiring: Retiring) -> None:
    """Write down who has to be told, together with those that are written down already."""
    value = store.get(_RETIRING + shard)
    version = None
    if value is not None:
        known = _decode(value.data)
        retiring = Retiring(max(known.epoch, retiring.epoch), known.members | retiring.members)
        version = value.version
    if isinstance(store.put(_RETIRING + shard, msgspec.json.encode(retiring), version), Conflict):
        keep_retiring(store, shard, retiring)


def forget_retiring(store: Store, shard: str, members: frozenset[str]) -> None:
    """These have been told. If others were written down meanwhile, the next look finds them all again."""
    value = store.get(_RETIRING + shard)
    if value is not None and _decode(value.data).members <= members:
        store.delete(_RETIRING + shard, value.version)

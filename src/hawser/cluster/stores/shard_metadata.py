"""The metadata of shards in a store: one key per shard, as JSON, so that a person can read it in an
emergency.

`Metadata.version` counts the writes to one shard; a write is compared with the store's version. A
`StoredShard` holds both. A write is accepted only on top of the version that it was made from, so
`Metadata.version` grows by one with each write, and an operator that slept through the deletion and
re-creation of a shard cannot write into the new one, whatever its count.
"""

from typing import Final

import msgspec

from hawser import errors
from hawser.cluster.stores.store import Conflict, Store, Value
from hawser.log.protocol.metadata import Metadata

__all__ = ["SHARDS", "StoredShard", "delete_shard", "list_shards", "load_shard", "store_shard"]

SHARDS: Final = "shards/"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Metadata).decode


class StoredShard(msgspec.Struct, frozen=True):
    """A shard's metadata as the store has it, and the store's version of it."""

    metadata: Metadata
    store_version: int


def load_shard(store: Store, shard: str) -> StoredShard | None:
    """The stored metadata of `shard`."""
    return _stored(shard, store.get(SHARDS + shard))


def list_shards(store: Store) -> dict[str, StoredShard | errors.Corrupt]:
    """Every shard in the store, all at one instant; a shard that cannot be read has an error instead."""
    shards: dict[str, StoredShard | errors.Corrupt] = {}
    for key, value in store.list(SHARDS).items():
        shard = key.removeprefix(SHARDS)
        try:
            stored = _stored(shard, value)
            assert stored is not None
            shards[shard] = stored
        except errors.Corrupt as error:
            shards[shard] = error
    return shards


def store_shard(
    store: Store, shard: str, metadata: Metadata, previous: StoredShard | None
) -> StoredShard | None:
    """Write `metadata` in place of `previous` (None: the shard is new), and return what is there afterwards.

    It was written if and only if the result's metadata is `metadata`: a write whose answer was lost is found
    by the next load. None: the shard was deleted meanwhile. Passes on StoreUnavailable.
    """
    assert metadata.version == (1 if previous is None else previous.metadata.version + 1)
    expected = None if previous is None else previous.store_version
    result = store.put(SHARDS + shard, _encode(metadata), expected)
    return _stored(shard, result.current if isinstance(result, Conflict) else result)


def delete_shard(store: Store, shard: str, previous: StoredShard) -> bool:
    """Deletes the shard if it is unchanged; whether it did."""
    return store.delete(SHARDS + shard, previous.store_version)


def _stored(shard: str, value: Value | None) -> StoredShard | None:
    if value is None:
        return None
    try:
        return StoredShard(_decode(value.data), value.version)
    except msgspec.MsgspecError as error:
        raise errors.Corrupt(
            f"the metadata of shard {shard!r} in the store cannot be read ({error}). "
            "It was not written by this Hawser; put back what was under that key"
        ) from error

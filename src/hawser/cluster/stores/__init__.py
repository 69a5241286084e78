"""Metadata stores: where operators keep what must outlive them. Only operators use them."""

from hawser import errors
from hawser.cluster.stores.shard_metadata import (
    StoredShard,
    delete_shard,
    list_shards,
    load_shard,
    store_shard,
)
from hawser.cluster.stores.store import Conflict, Store, StoreUnavailable, Value

__all__ = [
    "open_store",
    "Store",
    "Value",
    "Conflict",
    "StoreUnavailable",
    "StoredShard",
    "load_shard",
    "list_shards",
    "store_shard",
    "delete_shard",
]

_FORMS = "sqlite:PATH or etcd://HOST:PORT[,HOST:PORT...][/PREFIX]"


def open_store(url: str, timeout_seconds: float = 5.0) -> Store:
    """The store at `url`, each call to which takes about `timeout_seconds` at most.

    A file is made where there is none. An etcd that cannot be reached shows at the first call.
    """
    scheme, _, rest = url.partition(":")
    # Two slashes would begin the name of a host.
    if scheme == "sqlite" and rest and (rest.startswith("///") or not rest.startswith("//")):
        from hawser.cluster.stores.sqlite import SqliteStore

        return SqliteStore(rest, timeout_seconds)
    if scheme == "etcd" and rest.startswith("//"):
        from hawser.cluster.stores.etcd import EtcdStore, parse_endpoints

        endpoints, prefix = parse_endpoints(url)
        return EtcdStore(endpoints, prefix, timeout_seconds)
    raise errors.UsageError(f"{url!r} is not the URL of a metadata store. Write {_FORMS}")

"""What an operator takes from those who ask: nothing is stored that a node or a client could not live with.

Clients check the same before they ask; here it is checked again, because any program can connect.
"""

from collections.abc import Callable
from typing import Final

from hawser.cluster import wire
from hawser.limits import MAX_FIELDS_BYTES, MAX_SCHEMA_BYTES
from hawser.record.names import check_topic_name

__all__ = ["check_creation", "check_nodes"]

Setting = int | str | bool | None

_MOST_PARTITIONS: Final = 1024
_MOST_REPLICAS: Final = 7
_NODES: Final = {
    wire.AdminKind.ELECT: 0,
    wire.AdminKind.TRANSFER: 1,
    wire.AdminKind.CONTRACT: 1,
    wire.AdminKind.EXPAND: 1,
    wire.AdminKind.SWAP: 2,
}


def check_creation(message: wire.Admin) -> None:
    """ValueError, for whoever asked, unless a topic may have this name and these settings."""
    check_topic_name(message.name)
    if not 1 <= message.partitions <= _MOST_PARTITIONS:
        raise ValueError(f"partitions={message.partitions}: a topic has 1 to {_MOST_PARTITIONS} partitions")
    for name, value in message.settings.items():
        if name not in _SETTINGS:
            raise ValueError(f"a topic has no setting {name!r}; it has {', '.join(_SETTINGS)}")
        is_right, wanted = _SETTINGS[name]
        if not is_right(value):
            raise ValueError(f"{name}={repr(value)[:80]}: {wanted}")


def check_nodes(message: wire.Admin) -> None:
    """ValueError unless as many nodes are named as this kind of order is about."""
    wanted = _NODES[message.kind]
    if len(message.nodes) != wanted:
        raise ValueError(f"{message.kind.value} is about {wanted} nodes, and {len(message.nodes)} are named")


def _is_number(value: Setting, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_bound(value: Setting) -> bool:
    return value is None or _is_number(value, (1 << 63) - 1)


def _is_text(value: Setting, most_bytes: int) -> bool:
    return value is None or (isinstance(value, str) and len(value.encode()) <= most_bytes)


_SETTINGS: Final[dict[str, tuple[Callable[[Setting], bool], str]]] = {
    "replication": (
        lambda value: _is_number(value, _MOST_REPLICAS),
        f"a topic has 1 to {_MOST_REPLICAS} replicas",
    ),
    "retention_bytes": (_is_bound, "it is a whole number from 1 on, or null"),
    "retention_seconds": (_is_bound, "it is a whole number from 1 on, or null"),
    "compression": (
        lambda value: value is None or value in ("lz4", "zstd"),
        'it is "lz4", "zstd" or null',
    ),
    "schema": (
        lambda value: _is_text(value, MAX_SCHEMA_BYTES),
        f"it is text of at most {MAX_SCHEMA_BYTES} bytes, or null",
    ),
    "fields": (
        lambda value: _is_text(value, MAX_FIELDS_BYTES),
        f"it is text of at most {MAX_FIELDS_BYTES} bytes, or null",
    ),
}

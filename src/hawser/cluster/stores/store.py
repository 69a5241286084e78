"""The interface of a metadata store.

A store maps keys to bytes. Elections are safe because of three rules:

- Every call takes effect at one instant between its start and its end. A call that raises may have no effect
  (`StoreUnavailable.outcome` tells). A read sees every write that returned before the read began.
- Every write names the version that it replaces. Of several writes that name one version, one takes effect.
- No version is used twice, not even after a deletion: a version stands for one value for ever.

A write that returned is on disk. Calls block, at most for their time-out; any thread may make them.
"""

from typing import Final, Literal, Protocol

import msgspec

from hawser import errors

__all__ = [
    "MAX_DATA_BYTES",
    "MAX_KEY_BYTES",
    "Conflict",
    "Store",
    "StoreUnavailable",
    "Value",
    "after_prefix",
    "check_write",
    "encoded_key",
]

MAX_KEY_BYTES: Final = 1024
# etcd refuses requests over 1.5 MiB.
MAX_DATA_BYTES: Final = 1 << 20


class Value(msgspec.Struct, frozen=True):
    """The data of a key. Versions grow with every write to the store, not necessarily by one."""

    data: bytes
    version: int


class Conflict(msgspec.Struct, frozen=True):
    """Nothing was written: the key has not the expected version but `current`."""

    current: Value | None


class StoreUnavailable(errors.HawserError):
    """The store did not answer, or the operation failed.

    With the outcome "unknown" a write took effect or did not, and may still do so until what it was to
    replace is replaced; read the key again to learn which. With "none" it certainly did not.
    """

    retryable = True

    def __init__(self, message: str, outcome: Literal["none", "unknown"] = "none") -> None:
        super().__init__(message)
        self.outcome = outcome


class Store(Protocol):
    """Keys are text of at most `MAX_KEY_BYTES` bytes, never empty; data at most `MAX_DATA_BYTES`."""

    def get(self, key: str) -> Value | None:
        """The current value."""

    def list(self, prefix: str) -> dict[str, Value]:
        """Every key that begins with `prefix`, in order, all as of one instant; "" lists everything."""

    def put(self, key: str, data: bytes, expected: int | None) -> Value | Conflict:
        """Writes if the key has the version `expected`, or with None if the key does not exist."""

    def delete(self, key: str, expected: int) -> bool:
        """Deletes if the key has the version `expected`; whether it did."""

    def close(self) -> None:
        """Closes the store. Every later call but this one raises Closed."""


def encoded_key(key: str) -> bytes:
    """The bytes of a key, or UsageError."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError as error:
        raise errors.UsageError(
            f"{key!r} cannot be a key of the metadata store: it is not Unicode text"
        ) from error
    if not 0 < len(encoded) <= MAX_KEY_BYTES:
        raise errors.UsageError(
            f"a key of the metadata store has 1 to {MAX_KEY_BYTES} bytes, not {len(encoded)}: {key[:80]!r}"
        )
    return encoded


def after_prefix(prefix: bytes) -> bytes:
    """The smallest bytes after every key with `prefix`, which must not be empty."""
    assert prefix, "nothing is above every key"
    # UTF-8 has no byte 0xff, so the last one can always be raised.
    assert prefix[-1] < 0xFF
    return prefix[:-1] + bytes([prefix[-1] + 1])


def check_write(key: str, data: bytes, expected: int | None) -> None:
    """UsageError if no store accepts this write."""
    assert expected is None or expected > 0, "versions begin at 1"
    if len(data) > MAX_DATA_BYTES:
        raise errors.UsageError(
            f"{len(data)} bytes for {key!r} are too many: the metadata store takes {MAX_DATA_BYTES}"
        )

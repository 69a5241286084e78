"""Key and headers of a message as bytes: a MessagePack array of the two.

A dead letter has a header that names the queue and the offset it was moved from.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from hawser.errors import Corrupt, UsageError

__all__ = [
    "decode_metadata",
    "encode_metadata",
    "DEAD_LETTER_HEADER",
    "dead_letter_origin",
    "with_origin",
    "without_origin",
]

_Metadata = tuple[bytes | None, dict[str, bytes]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Metadata).decode


def encode_metadata(key: bytes | None, headers: Mapping[str, bytes] | None) -> bytes | None:
    """Key and headers as bytes; None without either."""
    if key is None and not headers:
        return None
    if key is not None and not isinstance(key, bytes):
        raise UsageError(f"a key is bytes, not {type(key).__name__}; encode it, as in key=text.encode()")
    checked = _checked_headers(headers or {})
    try:
        return _encode((key, checked))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"key and headers cannot be written ({error}); a key is plain bytes, headers map str to bytes"
        ) from error


def decode_metadata(data: bytes) -> _Metadata:
    """(key, headers) from the bytes of `encode_metadata`, or from none; Corrupt for other bytes."""
    if not data:
        return None, {}
    try:
        metadata: _Metadata = _decode(data)
        return metadata
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"the key and headers of a message cannot be read ({error}); its publisher wrote something else"
        ) from error


def _checked_headers(headers: Any) -> dict[str, bytes]:
    if not isinstance(headers, Mapping):
        raise UsageError(f"headers are a mapping of str to bytes, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise UsageError(
                f"header {name!r} is {type(name).__name__} to {type(value).__name__}; "
                "headers map str to bytes, so encode the value"
            )
    return dict(headers)


DEAD_LETTER_HEADER: Final = "hawser-dead-letter"


class _Origin(msgspec.Struct, frozen=True):
    """The queue and offset a dead letter comes from, and the number of its deliveries there."""

    queue: str
    offset: int
    deliveries: int


_decode_origin = msgspec.json.Decoder(_Origin).decode


def with_origin(metadata: bytes, queue: str, offset: int, deliveries: int) -> bytes:
    """The metadata of a message with its origin added, for a dead letter."""
    key, headers = decode_metadata(metadata)
    headers[DEAD_LETTER_HEADER] = msgspec.json.encode(_Origin(queue, offset, deliveries))
    return encode_metadata(key, headers) or b""


def dead_letter_origin(metadata: bytes) -> str | None:
    """The queue that a dead letter comes from; None without a valid header."""
    _, headers = decode_metadata(metadata)
    try:
        return _decode_origin(headers.get(DEAD_LETTER_HEADER, b"")).queue
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Any client may put a message with such a header.
        return None


def without_origin(metadata: bytes) -> bytes:
    """The metadata without its origin, for a message moved back."""
    key, headers = decode_metadata(metadata)
    headers.pop(DEAD_LETTER_HEADER, None)
    return encode_metadata(key, headers) or b""

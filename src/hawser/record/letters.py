"""Dead letters: how a message that was moved to them says where it was."""

from typing import Final

import msgspec

from hawser.record.metadata import decode_metadata, encode_metadata

__all__ = ["LETTER_HEADER", "origin_of_letter", "with_origin", "without_origin"]

LETTER_HEADER: Final = "hawser-dead-letter"


class _Origin(msgspec.Struct, frozen=True):
    """Queue and offset it had there, and how often it was delivered."""

    queue: str
    offset: int
    deliveries: int


_decode = msgspec.json.Decoder(_Origin).decode


def with_origin(metadata: bytes, queue: str, offset: int, deliveries: int) -> bytes:
    """The metadata of a message of that queue as a dead letter."""
    key, headers = decode_metadata(metadata)
    headers[LETTER_HEADER] = msgspec.json.encode(_Origin(queue, offset, deliveries))
    return encode_metadata(key, headers) or b""


def origin_of_letter(metadata: bytes) -> str | None:
    """The queue that a dead letter comes from; None if it does not say so."""
    _, headers = decode_metadata(metadata)
    try:
        return _decode(headers.get(LETTER_HEADER, b"")).queue
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Any client may put a message with such a header there.
        return None


def without_origin(metadata: bytes) -> bytes:
    """The metadata it had before it was a dead letter."""
    key, headers = decode_metadata(metadata)
    headers.pop(LETTER_HEADER, None)
    return encode_metadata(key, headers) or b""

"""Answers as they are sent. Long batches go out from where they lie, since copying them together would cost
more than all the rest of a fetch."""

import struct
from typing import Final

from hawser.cluster import wire
from hawser.cluster.transport import Body

__all__ = ["encode_answer"]

# Shorter ones are copied in less time than it takes to send them by themselves.
_LONG_BYTES: Final = 16 << 10

# MessagePack: arrays, a number and a binary, each in its longest form.
_FOUR: Final = b"\x94"
_MANY: Final = struct.Struct(">BI")
_PLACE: Final = struct.Struct(">BBQBI")
_ARRAY, _PAIR, _NUMBER, _BINARY = 0xDD, 0x92, 0xCF, 0xC6


def encode_answer(answer: wire.Answer) -> Body:
    """What decodes to `answer`; batches must stay as they are until it is sent."""
    if isinstance(answer, wire.Batches) and answer.batches:
        size = sum(len(payload) for _, payload in answer.batches)
        if size >= _LONG_BYTES * len(answer.batches):
            return _pieces(answer)
    return wire.encode(answer)


def _pieces(answer: wire.Batches) -> Body:
    batches = answer.batches
    head = _FOUR + wire.encode("batches") + _MANY.pack(_ARRAY, len(batches))
    pieces: list[bytes | memoryview] = []
    for first_offset, payload in batches:
        pieces.append(head + _PLACE.pack(_PAIR, _NUMBER, first_offset, _BINARY, len(payload)))
        pieces.append(payload)
        head = b""
    return (*pieces, wire.encode(answer.start) + wire.encode(answer.end))

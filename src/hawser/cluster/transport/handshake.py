"""The first frames on a connection: the identity of each side, and the version of the protocol that both will
use.

    HELLO     magic, lowest and highest version (u16 each), then a MessagePack map: Introduction
    WELCOME   magic, the version to use (u16), zero (u16), then the listener's Introduction
    REFUSAL   magic, the listener's lowest and highest version (u16 each), then the reason as UTF-8

The first ten bytes are the same in all versions, so that any two sides can report why they cannot talk. A
reader ignores keys of the map that it does not know.
"""

import struct
from enum import StrEnum
from typing import Final

import msgspec

from hawser.cluster.transport.errors import MALFORMED, Malformed, Refused

__all__ = [
    "VERSIONS",
    "Identity",
    "Introduction",
    "PeerRole",
    "choose_version",
    "objection",
    "read_hello",
    "read_refusal",
    "read_welcome",
    "write_hello",
    "write_refusal",
    "write_welcome",
]

# Lowest and highest version that this code speaks.
VERSIONS: Final = (1, 1)

_MAGIC: Final = b"HAWSER"
_OPENING: Final = struct.Struct("<6sHH")
_MOST_NAME_BYTES: Final = 255
_MOST_REASON_BYTES: Final = 2048


class PeerRole(StrEnum):
    """The kind of a process."""

    NODE = "node"
    OPERATOR = "operator"
    CLIENT = "client"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a process: `run` differs at each start; `cluster` is empty while the process does not
    know it."""

    role: PeerRole
    name: str
    run: str
    cluster: str = ""

    def __str__(self) -> str:
        return f"{self.role} {self.name}"


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """What each side tells the other about itself."""

    identity: Identity
    most_requests: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Introduction).decode


def write_hello(introduction: Introduction, versions: tuple[int, int] = VERSIONS) -> bytes:
    return _OPENING.pack(_MAGIC, *versions) + _encode(introduction)


def read_hello(body: bytes | bytearray) -> tuple[int, int, bytes]:
    """Lowest and highest version of the dialer, and its introduction, to be decoded if the version fits."""
    lowest, highest, rest = _open(body)
    if not 0 < lowest <= highest:
        raise Malformed(f"a hello with the impossible versions {lowest} to {highest}")
    return lowest, highest, rest


def write_welcome(introduction: Introduction, version: int) -> bytes:
    return _OPENING.pack(_MAGIC, version, 0) + _encode(introduction)


def read_welcome(body: bytes | bytearray) -> tuple[int, Introduction]:
    """The version to use, and the listener's introduction."""
    version, _, rest = _open(body)
    if not VERSIONS[0] <= version <= VERSIONS[1]:
        raise Malformed(f"a welcome to version {version} of the protocol, which was not offered")
    return version, read_introduction(rest)


def write_refusal(reason: str) -> bytes:
    return _OPENING.pack(_MAGIC, *VERSIONS) + shortened(reason)


def read_refusal(body: bytes | bytearray) -> str:
    """The reason, as text that can be shown."""
    return readable(_open(body)[2])


def read_introduction(body: bytes) -> Introduction:
    """The identity that the peer presents, checked."""
    try:
        introduction = _decode(body)
    except MALFORMED as error:
        raise Malformed(f"an introduction that cannot be read: {error}") from error
    identity = introduction.identity
    for text in (identity.name, identity.run):
        if not text or len(text.encode(errors="replace")) > _MOST_NAME_BYTES or not text.isprintable():
            raise Malformed(f"an introduction with the impossible name {text[:64]!r}")
    if len(identity.cluster) > _MOST_NAME_BYTES or not identity.cluster.isprintable():
        raise Malformed("an introduction with an impossible cluster")
    if introduction.most_requests < 1:
        raise Malformed(f"a peer that serves {introduction.most_requests} requests at a time")
    return introduction


def choose_version(lowest: int, highest: int) -> int:
    """The newest version that both sides know; Refused, with a text for the dialer, if there is none."""
    chosen = min(highest, VERSIONS[1])
    if chosen >= max(lowest, VERSIONS[0]):
        return chosen
    theirs, ours = _span(lowest, highest), _span(*VERSIONS)
    older = "this side" if lowest > VERSIONS[1] else "the other side"
    raise Refused(f"this side speaks {ours} of the protocol and the other {theirs}. Update Hawser on {older}")


def objection(mine: Identity, theirs: Identity) -> str | None:
    """Why the two must not connect; None if they may."""
    if mine.cluster and theirs.cluster and mine.cluster != theirs.cluster:
        return (
            f"{mine} belongs to cluster {mine.cluster} and {theirs} to cluster {theirs.cluster}. "
            "Check the addresses and the data directories"
        )
    return None


def shortened(reason: str) -> bytes:
    """A reason as it is sent."""
    return reason.encode(errors="replace")[:_MOST_REASON_BYTES]


def readable(text: bytes | bytearray) -> str:
    """A text of a peer as one line that can be shown."""
    line = bytes(text[:_MOST_REASON_BYTES]).decode(errors="replace")
    return "".join(character if character.isprintable() else " " for character in line) or "no reason given"


def _open(body: bytes | bytearray) -> tuple[int, int, bytes]:
    if len(body) < _OPENING.size or not body.startswith(_MAGIC):
        raise Malformed("a peer that does not speak the protocol of Hawser")
    _, first, second = _OPENING.unpack_from(body)
    return first, second, bytes(body[_OPENING.size :])


def _span(lowest: int, highest: int) -> str:
    return f"version {lowest}" if lowest == highest else f"versions {lowest} to {highest}"

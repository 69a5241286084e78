"""Names of topics and participants, and the file names of topics.

A topic's file is its name's UTF-8 bytes, each byte but ASCII letters, digits, `-`, `_` and inner dots
percent-encoded, and `.topic`. Two names never share a file, and no name reaches outside the directory.
"""

from typing import Final

from hawser.errors import UsageError
from hawser.limits import (
    GROUP_PREFIX,
    MAX_ENCODED_TOPIC_NAME_BYTES,
    MAX_PARTICIPANT_NAME_BYTES,
    MAX_TOPIC_NAME_BYTES,
    TOPIC_SUFFIX,
)

__all__ = ["check_bus_name", "check_topic_name", "file_name_of", "group_record", "topic_name_of"]

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_LINE_ENDS: Final = "\u2028\u2029"


def check_topic_name(name: str) -> str:
    """The name itself if a topic may have it, otherwise a UsageError that says why not."""
    data = _checked_text(name, "topic name")
    if not all(name.split("/")):
        raise UsageError(f"topic name {name!r} has an empty part; write it like 'camera/front'")
    if len(data) > MAX_TOPIC_NAME_BYTES:
        raise UsageError(f"topic name {name!r} has {len(data)} bytes of at most {MAX_TOPIC_NAME_BYTES}")
    encoded = len(_percent_encoded(data))
    if encoded > MAX_ENCODED_TOPIC_NAME_BYTES:
        raise UsageError(
            f"topic name {name!r} needs {encoded} characters as a file name, of at most "
            f"{MAX_ENCODED_TOPIC_NAME_BYTES}; each byte outside ASCII counts three: choose a shorter one"
        )
    return name


def check_bus_name(name: str) -> str:
    """The name itself if a bus may have it, otherwise a UsageError that says why not."""
    _check_participant_name(name, "bus name")
    if name.startswith(GROUP_PREFIX):
        raise UsageError(f"bus name {name!r} begins with {GROUP_PREFIX!r}, which is kept for groups")
    return name


def group_record(group: str) -> str:
    """The name under which a region keeps the position of a group."""
    _checked_text(group, "group name")
    record = GROUP_PREFIX + group
    _check_participant_name(record, "group name")
    return record


def file_name_of(topic: str) -> str:
    """The name of the topic's file in its domain."""
    return _percent_encoded(check_topic_name(topic).encode()) + TOPIC_SUFFIX


def topic_name_of(file_name: str) -> str | None:
    """The topic whose file has that name; None if it is no topic's."""
    if not file_name.endswith(TOPIC_SUFFIX):
        return None
    first, *escaped = file_name.removesuffix(TOPIC_SUFFIX).split("%")
    try:
        data = first.encode("ascii")
        for part in escaped:
            data += bytes.fromhex(part[:2]) + part[2:].encode("ascii")
        name = data.decode()
        return name if file_name_of(name) == file_name else None
    except ValueError:
        return None


def _percent_encoded(data: bytes) -> str:
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
    # A leading dot would hide the file, or make it the domain's own.
    return "%2E" + text[1:] if text.startswith(".") else text


def _check_participant_name(name: str, what: str) -> None:
    data = _checked_text(name, what)
    if len(data) > MAX_PARTICIPANT_NAME_BYTES:
        raise UsageError(f"{what} {name!r} has {len(data)} bytes of at most {MAX_PARTICIPANT_NAME_BYTES}")


def _checked_text(name: str, what: str) -> bytes:
    if not isinstance(name, str):
        raise UsageError(f"a {what} is a str, not {type(name).__name__}")
    if not name:
        raise UsageError(f"a {what} has at least one character")
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 or letter in _LINE_ENDS for letter in name):
        raise UsageError(f"{what} {name!r} has a control character; leave it out")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {name!r} is not Unicode text: {error.reason}") from error

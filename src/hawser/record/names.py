"""The rule for names of topics and queues, on one host and in a cluster, and their file names.

A file name has a name's UTF-8 bytes percent-encoded, except ASCII letters, digits, `-`, `_` and inner dots.
So two names never share a file, and no name leaves its directory.
"""

from typing import Final

from hawser.errors import UsageError
from hawser.limits import DEAD_LETTER_SUFFIX, MAX_ENCODED_TOPIC_NAME_BYTES, MAX_TOPIC_NAME_BYTES

__all__ = [
    "check_is_another",
    "check_queue_names",
    "check_topic_name",
    "checked_text",
    "percent_encoded",
]

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
_LINE_ENDS: Final = "\u2028\u2029"
# Bounds error texts, because names may come from other users.
_MOST_SHOWN: Final = 200


def check_topic_name(name: str, what: str = "name") -> str:
    """The name itself; UsageError if it is not valid for a topic or queue."""
    data = checked_text(name, what)
    shown = repr(name[:_MOST_SHOWN])
    if not all(name.split("/")):
        raise UsageError(f"{what} {shown} has an empty part; write it like 'camera/front'")
    if len(data) > MAX_TOPIC_NAME_BYTES:
        raise UsageError(f"{what} {shown} has {len(data)} bytes of at most {MAX_TOPIC_NAME_BYTES}")
    encoded = len(percent_encoded(data))
    if encoded > MAX_ENCODED_TOPIC_NAME_BYTES:
        raise UsageError(
            f"{what} {shown} needs {encoded} characters as a file name, of at most "
            f"{MAX_ENCODED_TOPIC_NAME_BYTES}; each byte outside ASCII counts three: choose a shorter one"
        )
    return name


def check_is_another(queue: str, dead_letter: object) -> None:
    """Raises UsageError if a queue names itself for its dead letters."""
    if dead_letter == queue:
        raise UsageError(
            f"queue {queue!r} cannot be its own dead_letter; leave that out, or name another queue"
        )


def check_queue_names(queue: str, dead_letter: object) -> None:
    """Raises UsageError unless a queue of a cluster may have this name and this dead_letter. A cluster keeps
    dead letters with their queue and reserves their name."""
    check_is_another(queue, dead_letter)
    for name in (queue, dead_letter):
        if isinstance(name, str) and name.endswith(DEAD_LETTER_SUFFIX):
            owner = name.removesuffix(DEAD_LETTER_SUFFIX)
            raise UsageError(
                f"{name!r} is what the dead letters of queue {owner!r} are called, which a cluster keeps "
                f"with it: get them with bus.queue({owner!r}).dead_letters(), or `hawser queue get --dead`; "
                "choose another name for a queue"
            )


def checked_text(name: str, what: str) -> bytes:
    """The bytes of a name; UsageError if it is empty or has control characters."""
    if not isinstance(name, str):
        raise UsageError(f"a {what} is a str, not {type(name).__name__}")
    if not name:
        raise UsageError(f"a {what} has at least one character")
    if any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 or letter in _LINE_ENDS for letter in name):
        raise UsageError(f"{what} {name[:_MOST_SHOWN]!r} has a control character; leave it out")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} {name[:_MOST_SHOWN]!r} is not Unicode text: {error.reason}") from error


def percent_encoded(data: bytes) -> str:
    """The bytes as a part of a file name."""
    text = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)
    # A leading dot would hide the file, or make it the domain's own.
    return "%2E" + text[1:] if text.startswith(".") else text

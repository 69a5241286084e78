"""Names of participants, and file names of topics: the name as `hawser.record.names` encodes it, with
`.topic`."""

from hawser.errors import UsageError
from hawser.limits import (
    CONSUMER_PREFIX,
    DEAD_LETTERS_PREFIX,
    GROUP_PREFIX,
    MAX_PARTICIPANT_NAME_BYTES,
    TOPIC_SUFFIX,
)
from hawser.record.names import check_topic_name, checked_text, percent_encoded

__all__ = ["check_bus_name", "check_topic_name", "file_name_of", "group_record", "topic_name_of"]


def check_bus_name(name: str) -> str:
    """The name itself; UsageError if it is not valid for a bus."""
    _check_participant_name(name, "bus name")
    for prefix in (GROUP_PREFIX, CONSUMER_PREFIX, DEAD_LETTERS_PREFIX):
        if name.startswith(prefix):
            raise UsageError(f"bus name {name!r} begins with {prefix!r}, which is reserved; choose another")
    return name


def group_record(group: str) -> str:
    """The name under which a region keeps the position of a group."""
    checked_text(group, "group name")
    record = GROUP_PREFIX + group
    _check_participant_name(record, "group name")
    return record


def file_name_of(topic: str) -> str:
    """The file of a topic in its domain."""
    return percent_encoded(check_topic_name(topic).encode()) + TOPIC_SUFFIX


def topic_name_of(file_name: str) -> str | None:
    """The topic with this file name; None for other files."""
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


def _check_participant_name(name: str, what: str) -> None:
    data = checked_text(name, what)
    if len(data) > MAX_PARTICIPANT_NAME_BYTES:
        raise UsageError(f"{what} {name!r} has {len(data)} bytes of at most {MAX_PARTICIPANT_NAME_BYTES}")

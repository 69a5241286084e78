"""How messages, entries and metadata read in a script."""

from collections.abc import Callable, Iterable
from typing import Any

from hawser.log.entry import Entry, EntryId, Kind
from hawser.log.protocol import messages as m
from hawser.log.protocol.messages import Change, ChangeKind
from hawser.log.protocol.metadata import Metadata
from hawser.record.batch import Batch

__all__ = [
    "KINDS",
    "change_words",
    "entry_words",
    "log_words",
    "message_words",
    "metadata_words",
    "tag",
    "values_of",
]


def tag(message: object) -> str:
    """The word a script names a kind of message by."""
    if isinstance(message, m.Message):
        return str(message.__struct_config__.tag)
    return type(message).__name__.lower()


def values_of(entry: Entry) -> list[str]:
    """Of a batch, without what only makes it long."""
    records = Batch.read(bytes(entry.payload)).records()
    return [record.value.decode().rstrip(".") for record in records]


def value_words(entry: Entry) -> str:
    return "+".join(values_of(entry)) if entry.kind == Kind.BATCH else Kind(entry.kind).name.lower()


def entry_words(entry: Entry) -> str:
    return f"{entry.id} {value_words(entry)}"


def log_words(entries: Iterable[Entry]) -> str:
    return ", ".join(map(entry_words, entries)) or "nothing"


def change_words(change: Change) -> str:
    if change.kind is ChangeKind.SWAP:
        return f"swap {change.old} for {change.new}"
    return f"{change.kind} {change.new or change.old}"


def _heads(heads: dict[str, EntryId]) -> str:
    return ", ".join(f"{member} {head}" for member, head in heads.items()) or "none"


def _entries(message: m.AddEntriesRequest) -> str:
    if not message.entries:
        return f"no more entries after {message.previous}, commit {message.commit}"
    first = message.entries[0]
    after = "" if message.previous.epoch == first.epoch else f" after {message.previous}"
    return f"entries {log_words(message.entries)}{after}, commit {message.commit}"


def _have(message: m.AddEntriesResponse) -> str:
    if message.current > message.epoch:
        return f"no, this is epoch {message.current}"
    return f"have {message.head}" if message.accepted else f"cannot follow that, head {message.head}"


def _beaten(message: m.HeartbeatResponse) -> str:
    if message.current > message.epoch:
        return f"no, this is epoch {message.current}"
    return f"beaten {message.number}, head {message.head or 'not on disk yet'}"


def _committed(message: m.CommitReconfigurationResponse) -> str:
    return ("committed " if message.safe else "not safe yet: ") + change_words(message.change)


def _hand_over(message: m.HandOverRequest) -> str:
    return f"hand over to {message.successor}" if message.successor else "do not hand over"


def _ready(message: m.HandOverResponse) -> str:
    return f"{message.successor} has everything" if message.successor else "not handing over"


_WORDS: dict[type, Callable[[Any], str]] = {
    m.FenceRequest: lambda x: "fence",
    m.FenceResponse: lambda x: f"fenced, head {x.head}",
    m.BecomeLeaderRequest: lambda x: f"lead {', '.join(x.members)}; heads {_heads(x.followers)}",
    m.BecomeLeaderResponse: lambda x: "leads",
    m.AddFollowerRequest: lambda x: f"add {x.follower}, head {x.head}",
    m.AddFollowerResponse: lambda x: f"added {x.follower}",
    m.TruncateRequest: lambda x: f"truncate {x.head} to {x.target}",
    m.TruncateResponse: lambda x: f"truncated, head {x.head}",
    m.SnapshotNeeded: lambda x: f"snapshot needed after {x.head}",
    m.AddEntriesRequest: _entries,
    m.AddEntriesResponse: _have,
    m.HeartbeatRequest: lambda x: f"beat {x.number}, commit {x.commit}",
    m.HeartbeatResponse: _beaten,
    m.PrepareReconfigurationRequest: lambda x: f"prepare {change_words(x.change)}",
    m.PrepareReconfigurationResponse: lambda x: f"prepared {change_words(x.change)}",
    m.SnapshotRequest: lambda x: f"take a snapshot from {x.leader}",
    m.SnapshotResponse: lambda x: f"installed, head {x.head}",
    m.CommitReconfigurationRequest: lambda x: f"commit {change_words(x.change)}",
    m.CommitReconfigurationResponse: _committed,
    m.AbortReconfigurationRequest: lambda x: f"abort {change_words(x.change)}",
    m.AbortReconfigurationResponse: lambda x: f"aborted {change_words(x.change)}",
    m.HandOverRequest: _hand_over,
    m.HandOverResponse: _ready,
    m.RetireRequest: lambda x: "retire",
    m.RetireResponse: lambda x: "retired",
    m.StatusRequest: lambda x: "ask",
    m.StatusResponse: lambda x: f"status {x.role}, head {x.head}",
    m.ReadSnapshotRequest: lambda x: f"read part {x.part} from {x.position}",
    m.ReadSnapshotResponse: lambda x: f"piece of part {x.part}, {len(x.data)} bytes",
}

KINDS = tuple(_WORDS)


def message_words(message: object) -> str:
    if isinstance(message, m.Message):
        return f"{_WORDS[type(message)](message)} (epoch {message.epoch})"
    metadata: Metadata | None = getattr(message, "metadata", None)
    return tag(message) + (f" version {metadata.version}" if metadata else "")


def metadata_words(metadata: Metadata) -> str:
    words = [f"{metadata.status}", f"epoch {metadata.epoch}"]
    if metadata.leader:
        words.append(f"leader {metadata.leader}")
    words.append(f"members {' '.join(metadata.members)}")
    if metadata.change:
        words.append(f"{metadata.phase} {change_words(metadata.change)}")
    if metadata.removed:
        words.append(f"removed {' '.join(metadata.removed)}")
    return ", ".join(words)

"""Checks the topics of a landing before Spark is started, so that faults show at once."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

import hawser
from hawser.errors import Unavailable, UsageError
from hawser.spark.pipelines.coverage import Coverage

__all__ = ["PartitionEnds", "check_kept", "common_fields", "look", "look_if_there"]

_FORCE: Final = "give --force"


class PartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    """A partition has the offsets from `start` up to but not including `end`; both are 0 if unknown."""

    topic: str
    topic_uuid: str
    partition: int
    start: int
    end: int


def look(url: str, topics: Sequence[str], value_format: str) -> list[PartitionEnds]:
    """The partitions as they are now. NotFound if a topic does not exist, UsageError if its values are of a
    schema of another format."""
    ends = []
    with hawser.connect(url) as bus:
        for name in topics:
            info = bus.topic(name, create=False).info()
            _check_format(name, info.settings.get("schema"), value_format)
            ends += _ends(info)
    return ends


def look_if_there(url: str, topics: Iterable[str]) -> list[PartitionEnds]:
    """The partitions of those of these topics that exist, as they are now."""
    ends = []
    with hawser.connect(url) as bus:
        for name in topics:
            with suppress(hawser.NotFound):
                ends += _ends(bus.topic(name, create=False).info())
    return ends


def _ends(info: hawser.TopicInfo) -> list[PartitionEnds]:
    return [
        PartitionEnds(
            topic=info.name, topic_uuid=info.uuid, partition=each.partition, start=each.start, end=each.end
        )
        for each in info.partitions
    ]


def _check_format(topic: str, schema: object, value_format: str) -> None:
    kind = schema.partition(":")[0] if isinstance(schema, str) and schema else value_format
    if value_format not in ("raw", kind):
        raise UsageError(
            f"topic {topic!r} carries values of the schema {schema!r}; land it with --value-format {kind} or "
            "raw"
        )


def common_fields(url: str, topics: Sequence[str]) -> str:
    """The fields of these topics' values, as SQL names them. UsageError unless all were made with a schema of
    the same fields, NotFound if one does not exist."""
    with hawser.connect(url) as bus:
        found = {bus.topic(name, create=False).info().settings.get("fields") for name in topics}
    fields = found.pop() if len(found) == 1 else None
    if not isinstance(fields, str):
        raise UsageError(
            "these topics were not made with a schema that names the same fields: say with --schema what is "
            "in their values, as in 'id bigint, name string'"
        )
    return fields


def check_kept(ends: Sequence[PartitionEnds], landed: Sequence[Coverage]) -> None:
    """UsageError if the table has records that the topics no longer have, or are not known to have."""
    now = {(each.topic_uuid, each.partition): each for each in ends}
    asked = {each.topic for each in ends}
    for each in landed:
        known = now.get((each.topic_uuid, each.partition))
        if known is None and each.topic not in asked:
            raise UsageError(
                f"the tables have {each.records} records of topic {each.topic!r}, which this run does not "
                f"read: making them anew would leave these out. Add --topic {each.topic}, or {_FORCE}"
            )
        if known is not None and known.end == 0:
            raise Unavailable(
                f"topic {each.topic!r}, partition {each.partition} has no leader, so it is not known whether "
                "it still has what is in the tables. Try again when `hawser cluster status` shows one, or "
                f"{_FORCE}"
            )
        kept = range(0) if known is None else range(known.start, known.end)
        if each.first not in kept or each.last not in kept:
            raise UsageError(
                f"{_gone(each, kept)} of topic {each.topic!r}, partition {each.partition}, are in the tables "
                "and not in the topic, which was trimmed, restored, or deleted and created anew: making the "
                f"tables anew loses them. To do so, {_FORCE}"
            )


def _gone(landed: Coverage, kept: range) -> str:
    if landed.first < kept.start:
        return f"records {landed.first} to {min(landed.last, kept.start - 1)}"
    return f"records {max(landed.first, kept.stop)} to {landed.last}"

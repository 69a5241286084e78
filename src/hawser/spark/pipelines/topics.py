"""The topics that a landing is to read, looked at before Spark is started: what is wrong is known at once."""

from collections.abc import Sequence

import msgspec

import hawser
from hawser.errors import UsageError
from hawser.spark.pipelines.coverage import Coverage

__all__ = ["PartitionEnds", "check_kept", "common_fields", "look"]


class PartitionEnds(msgspec.Struct, frozen=True, kw_only=True):
    """A partition has the offsets from `start` up to but not including `end`; both are 0 if unknown."""

    topic: str
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
            ends += [
                PartitionEnds(topic=name, partition=each.partition, start=each.start, end=each.end)
                for each in info.partitions
            ]
    return ends


def _check_format(topic: str, schema: object, value_format: str) -> None:
    kind = schema.partition(":")[0] if isinstance(schema, str) and schema else value_format
    if value_format not in ("raw", kind):
        raise UsageError(
            f"topic {topic!r} carries values of the schema {schema!r}; land it with --value-format {kind} or "
            "raw"
        )


def common_fields(url: str, topics: Sequence[str]) -> str:
    """What the values of these topics hold, as SQL names it. UsageError unless all were made with a schema of
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
    """UsageError if the table has records that are no longer in the topics."""
    starts = {(each.topic, each.partition): each.start for each in ends}
    for each in landed:
        start = starts.get((each.topic, each.partition), each.last + 1)
        if each.first < start:
            raise UsageError(
                f"records {each.first} to {min(start - 1, each.last)} of topic {each.topic!r}, partition "
                f"{each.partition}, are in the tables and no longer in the topic: making them anew loses "
                "these. Give --force if that is what you want"
            )

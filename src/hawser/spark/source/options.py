"""The options of the source, checked as a whole before anything else happens.

They carry the names and the meanings that they have in Spark's source for Kafka; `docs/howto/spark.md` lists
the differences. None of them is a secret: options appear in plans and logs.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple

import msgspec

from hawser.cluster.client.client import addresses_of
from hawser.errors import UsageError

__all__ = ["EARLIEST", "LATEST", "Options", "Positions", "Start", "Times"]

# As offsets in JSON.
LATEST: Final = -1
EARLIEST: Final = -2

_NAMES: Final = (
    "endpoints",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "includeTopicUuid",
    "valueFormat",
    "valueSchema",
    "mode",
    "groupId",
    "queue",
    "claimName",
    "orphanSeconds",
)
_KNOWN: Final = {name.lower(): name for name in _NAMES}
_ONLY_STREAMS: Final = (
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId",
)  # fmt: skip
_LOCAL: Final = ("endpoints", "subscribe", "includeHeaders", "valueFormat", "valueSchema", "mode")
_OF_QUEUES: Final = ("queue", "claimName", "orphanSeconds")
_WITH_QUEUES: Final = (
    "endpoints", "maxOffsetsPerTrigger", "minPartitions", "includeHeaders", "includeTopicUuid",
    "valueFormat", "valueSchema", "mode", *_OF_QUEUES,
)  # fmt: skip
_TOPICS: Final = ("subscribe", "subscribePattern", "assign")
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_EXCLUSIVE: Final = (_TOPICS, _STARTS, _ENDS, ("maxOffsetsPerTrigger", "maxBytesPerTrigger"))
# Options of Kafka's source that programs may still give.
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "endpoints",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
}
# As Spark writes times; without a unit they are milliseconds.
_UNITS: Final = {
    "us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0,
}  # fmt: skip
_USUAL_DELAY: Final = "15m"
_FORMATS: Final = ("raw", "json", "msgpack", "arrow")
_VIEW: Final = (
    "write CREATE TEMPORARY VIEW name USING hawser OPTIONS (endpoints 'hawser://host:port', "
    "subscribe 'topic') to read, and df.write.format(\"hawser\") to write"
)
# What the offsets of a checkpoint, and of a query's progress, say beside positions.
_ASIDE: Final = ("uuid", "began", "terms", "lag")
_MODES: Final = ("FAILFAST", "PERMISSIVE")
_NAME_BYTES: Final = 150
# Longer than a broken query should wait.
_ORPHAN_SECONDS: Final = 7 * 86_400

Positions = dict[str, dict[int, int]]
"""Of each topic, of each partition: an offset, EARLIEST or LATEST."""

Word = Literal["earliest", "latest"]
Start = Word | Positions

Times = int | Positions
"""Milliseconds since 1970: of all partitions, or of each that is named."""

_decode_positions = msgspec.json.Decoder(dict[str, dict[str, int | str | dict[str, int]]]).decode
_decode_times = msgspec.json.Decoder(dict[str, dict[str, int]]).decode
_decode_partitions = msgspec.json.Decoder(dict[str, list[int]]).decode


class Options(NamedTuple):
    """The checked options. `pattern`, or `queue` with its `claim`, stands in the place of `topics`;
    `start_times` in that of `start`, and `end_times` in that of `end`. Partitions that none of these names
    begin at `usual_start` and end behind their newest record."""

    endpoints: str
    topics: tuple[str, ...]
    pattern: str | None
    assigned: dict[str, tuple[int, ...]] | None
    usual_start: Word
    start: Start
    start_times: Times | None
    fail_on_no_match: bool
    end: Start
    end_times: Times | None
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay_seconds: float
    min_partitions: int | None
    max_records: int | None
    fail_on_data_loss: bool
    with_headers: bool
    with_topic_uuid: bool
    value_format: str
    value_schema: str | None
    is_permissive: bool
    group: str | None
    queue: str | None = None
    claim: str | None = None
    orphan_seconds: int = _ORPHAN_SECONDS

    @property
    def is_local(self) -> bool:
        """Whether the topics are in the memory of one host."""
        return self.endpoints.startswith("shm://")

    def wants(self, topic: str) -> bool:
        """Whether the query reads a topic of this name."""
        return topic in self.topics if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def partitions_of(self, topic: str, count: int) -> Iterable[int]:
        """The partitions that the query reads of a topic with `count` of them; UsageError if one does not
        exist."""
        if self.assigned is None:
            return range(count)
        numbers = self.assigned[topic]
        if numbers[-1] >= count:
            raise UsageError(
                f"assign names partition {numbers[-1]} of topic {topic!r}, which has the partitions 0 to "
                f"{count - 1}; leave it out"
            )
        return numbers

    @property
    def is_typed(self) -> bool:
        return self.value_format != "raw"

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool | None = None) -> "Options":
        """Raise UsageError for the first wrong option, saying what to do instead. `streaming` is None until
        Spark says whether the query is a stream."""
        asked = _recognised(given)
        _check_scope(asked, streaming)
        _check_queue(asked, streaming)
        _check_conflicts(asked)
        topics, pattern, assigned = _topics(asked)
        usual_start: Word = "latest" if streaming else "earliest"
        value_format = _choice(asked, "valueFormat", _FORMATS)
        mode = _choice(asked, "mode", _MODES)
        if value_format == "raw" and ("mode" in asked or "valueSchema" in asked):
            raise UsageError("mode and valueSchema are about typed values; give valueFormat with them")
        return cls(
            endpoints=_endpoints(asked),
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            usual_start=usual_start,
            start=_place(asked, "startingOffsets", usual_start),
            start_times=_times(asked, "startingTimestamp", "startingOffsetsByTimestamp"),
            fail_on_no_match=_choice(asked, _STRATEGY, ("error", "latest")) == "error",
            end=_place(asked, "endingOffsets", "latest"),
            end_times=_times(asked, "endingTimestamp", "endingOffsetsByTimestamp"),
            max_offsets=_number(asked, "maxOffsetsPerTrigger"),
            max_bytes=_number(asked, "maxBytesPerTrigger"),
            min_offsets=_number(asked, "minOffsetsPerTrigger"),
            max_delay_seconds=_seconds(asked, "maxTriggerDelay", _USUAL_DELAY),
            min_partitions=_number(asked, "minPartitions"),
            max_records=_number(asked, "maxRecordsPerPartition"),
            fail_on_data_loss=_flag(asked, "failOnDataLoss", True),
            with_headers=_flag(asked, "includeHeaders", False),
            with_topic_uuid=_flag(asked, "includeTopicUuid", False),
            value_format=value_format,
            value_schema=asked.get("valueSchema"),
            is_permissive=mode == "PERMISSIVE",
            group=_short(asked, "groupId"),
            queue=asked.get("queue"),
            claim=_short(asked, "claimName"),
            orphan_seconds=_number(asked, "orphanSeconds") or _ORPHAN_SECONDS,
        )


def _recognised(given: Mapping[str, str]) -> dict[str, str]:
    """By the names as they are written in the documentation."""
    if "provider" in map(str.lower, given):
        # Spark gives it when it makes a table. When the table is read there are no options at all.
        raise UsageError(f"CREATE TABLE loses the options of a source in Python; {_VIEW}")
    if not given:
        raise UsageError(
            'the source needs option("endpoints", ...) and option("subscribe", ...). CREATE TABLE loses '
            f"options; {_VIEW}"
        )
    asked = {}
    for name, value in given.items():
        if name.lower() not in _KNOWN:
            near = get_close_matches(name.lower(), _KNOWN, 1)
            hint = f"did you mean {_KNOWN[near[0]]}?" if near else f"there are {', '.join(_NAMES)}"
            if name.lower() in _OF_KAFKA:
                hint = f"here it is {_OF_KAFKA[name.lower()]}"
            if name.lower() == "path":
                hint = 'name the topics with option("subscribe", ...), and give load() nothing'
            raise UsageError(f"the source hawser has no option {name!r}; {hint}")
        asked[_KNOWN[name.lower()]] = value
    return asked


def _check_scope(asked: dict[str, str], streaming: bool | None) -> None:
    for name in _ENDS:
        if streaming and name in asked:
            raise UsageError(f"a stream has no end: leave {name} out, or read it as a batch with spark.read")
    if streaming is False:
        for name in _ONLY_STREAMS:
            if name in asked:
                raise UsageError(f"{name} is for streams: leave it out, or use spark.readStream")
    if asked.get("endpoints", "").startswith("shm://"):
        if streaming:
            raise UsageError(
                "a topic in shared memory is read as a batch only; for a stream record it into a cluster "
                "(`hawser agent --record`) and read that"
            )
        for name in asked:
            if name not in _LOCAL:
                raise UsageError(
                    f"{name} is for topics of a cluster; with endpoints=shm:// there are {', '.join(_LOCAL)}"
                )


def _check_queue(asked: dict[str, str], streaming: bool | None) -> None:
    if "queue" not in asked:
        for name in _OF_QUEUES:
            if name in asked:
                raise UsageError(f"{name} is for queues; name one with option queue, or leave it out")
        return
    for name in asked:
        if name not in _WITH_QUEUES:
            raise UsageError(f"{name} is for topics; with a queue there are {', '.join(_WITH_QUEUES)}")
    if streaming is False:
        raise UsageError("a queue is read as a stream: use spark.readStream, with trigger(availableNow=True)")
    if "claimName" not in asked:
        raise UsageError(
            "a queue needs a claimName: the name, of this query only, under which messages are taken from it"
        )


def _check_conflicts(asked: dict[str, str]) -> None:
    for names in _EXCLUSIVE:
        given = [name for name in names if name in asked]
        if len(given) > 1:
            raise UsageError(f"{given[0]} and {given[1]} exclude each other; give one of them")
    least, most = _number(asked, "minOffsetsPerTrigger"), _number(asked, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise UsageError(
            f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}; give a smaller one"
        )
    if "maxTriggerDelay" in asked and least is None:
        raise UsageError("maxTriggerDelay ends the wait for minOffsetsPerTrigger; give that with it")
    if _STRATEGY in asked and not any(name in asked for name in _STARTS[1:]):
        raise UsageError(
            f"{_STRATEGY} is about a start by time; give startingTimestamp or startingOffsetsByTimestamp"
        )


def _endpoints(asked: dict[str, str]) -> str:
    endpoints = asked.get("endpoints", "").strip()
    if not endpoints:
        raise UsageError('the source needs option("endpoints", "hawser://host:port,...") or "shm://"')
    if not endpoints.startswith("shm://"):
        addresses_of(endpoints)
    return endpoints


def _topics(
    asked: dict[str, str],
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[int, ...]] | None]:
    """Their names, a pattern of them, and the partitions of each if not all of them were asked for."""
    if "queue" in asked:
        return (), None, None
    pattern = asked.get("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise UsageError(f"subscribePattern={pattern!r} is no regular expression: {error}") from error
        return (), pattern, None
    if "assign" in asked:
        assigned = _assigned(asked["assign"])
        return tuple(assigned), None, assigned
    topics = tuple(dict.fromkeys(filter(None, map(str.strip, asked.get("subscribe", "").split(",")))))
    if not topics:
        raise UsageError(
            'the source needs option("subscribe", "topic,..."), subscribePattern, assign or queue'
        )
    return topics, None, None


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    try:
        found = {topic: tuple(sorted(set(numbers))) for topic, numbers in _decode_partitions(text).items()}
        if not found or not all(numbers and numbers[0] >= 0 for numbers in found.values()):
            raise ValueError("each topic needs a partition, and they are counted from 0")
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f'assign={text!r} is not JSON such as {{"topic":[0,1]}}: {error}') from error
    return found


def _times(asked: dict[str, str], for_all: str, for_each: str) -> Times | None:
    text = asked.get(for_each)
    if text is None:
        return _number(asked, for_all, 0)
    try:
        times = {
            topic: {int(each): at for each, at in partitions.items()}
            for topic, partitions in _decode_times(text).items()
        }
        if any(at < 0 for partitions in times.values() for at in partitions.values()):
            raise ValueError("times are milliseconds since 1970")
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(
            f'{for_each}={text!r} is not JSON such as {{"topic":{{"0":1767268800000}}}}: {error}'
        ) from error
    return times


def _place(asked: dict[str, str], name: str, usual: Start) -> Start:
    text = asked.get(name, "").strip()
    if not text:
        return usual
    word = text.lower()
    if word == "latest" or (word == "earliest" and name == "startingOffsets"):
        return "latest" if word == "latest" else "earliest"
    try:
        positions = {
            topic: {int(each): _offset(name, at) for each, at in partitions.items() if each not in _ASIDE}
            for topic, partitions in _decode_positions(text).items()
        }
    except (msgspec.DecodeError, ValueError) as error:
        words = '"earliest", "latest"' if name == "startingOffsets" else '"latest"'
        raise UsageError(
            f'{name}={text!r} is not {words} or JSON such as {{"topic":{{"0":23,"1":-1}}}}: {error}'
        ) from error
    return positions


def _offset(name: str, value: object) -> int:
    least = EARLIEST if name == "startingOffsets" else LATEST
    if not isinstance(value, int) or (value < 1 and not least <= value <= LATEST):
        raise ValueError(
            f"{value!r} is no offset; they begin at 1, -1 is the end, -2 (to start at) the start"
        )
    return value


def _number(asked: dict[str, str], name: str, least: int = 1) -> int | None:
    text = asked.get(name)
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*", text)
    if found is None or int(found[1]) < least:
        raise UsageError(f"{name}={text!r} is not a whole number from {least} on, of at most 18 digits")
    return int(found[1])


def _seconds(asked: dict[str, str], name: str, usual: str) -> float:
    text = asked.get(name, usual).strip().lower()
    found = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", text)
    if found is None or found[2] not in _UNITS:
        raise UsageError(
            f"{name}={text!r} is no time; give a whole number with a unit, such as 30s, 5m or 1h"
        )
    return int(found[1]) * _UNITS[found[2]]


def _flag(asked: dict[str, str], name: str, usual: bool) -> bool:
    text = asked.get(name, str(usual)).strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"{name}={text!r} is not true or false")
    return text == "true"


def _choice(asked: dict[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = asked.get(name, choices[0]).strip()
    for choice in choices:
        if text.lower() == choice.lower():
            return choice
    raise UsageError(f"{name}={text!r} is not one of {', '.join(choices)}")


def _short(asked: dict[str, Any], name: str) -> str | None:
    text = asked.get(name)
    if text is not None and not 0 < len(text.encode()) <= _NAME_BYTES:
        raise UsageError(f"{name} has 1 to {_NAME_BYTES} bytes")
    return text

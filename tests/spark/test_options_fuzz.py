"""Any strings as options of the source and of the sink: each set of them is parsed, or refused with a
sentence that names an option. No Spark and no cluster."""

import json
import time
import warnings
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hawser import UsageError
from hawser.spark.sink import options as of_sink
from hawser.spark.source import options as of_source

Kind = type[of_source.Options] | type[of_sink.Options]

KINDS: Final = (of_source.Options, of_sink.Options)
# What a JVM can hold as a long.
MOST: Final = (1 << 63) - 1
# Of each option a value that is right by itself.
RIGHT: Final = {
    "endpoints": "hawser://h:1,i:2",
    "subscribe": "orders, payments",
    "subscribePattern": "or.*",
    "assign": '{"orders": [0, 1]}',
    "startingOffsets": '{"orders": {"0": 23, "1": -2}}',
    "startingTimestamp": "1767268800000",
    "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
    "startingOffsetsByTimestampStrategy": "latest",
    "endingOffsets": '{"orders": {"0": -1}}',
    "endingTimestamp": "7",
    "endingOffsetsByTimestamp": '{"orders": {"1": 9}}',
    "maxOffsetsPerTrigger": "1000",
    "maxBytesPerTrigger": "8388608",
    "minOffsetsPerTrigger": "10",
    "maxTriggerDelay": "5m",
    "minPartitions": "8",
    "maxRecordsPerPartition": "100",
    "failOnDataLoss": "FALSE",
    "includeHeaders": "true",
    "includeTopicUuid": "true",
    "valueFormat": "json",
    "valueSchema": "id bigint",
    "mode": "PERMISSIVE",
    "groupId": "g",
    "queue": "jobs",
    "claimName": "c",
    "orphanSeconds": "60",
    "topic": "orders",
    "txnAppId": "app",
    "txnVersion": "0",
}
ODD: Final = (
    *("", " ", ",", "\0", "\n", "é", "'", '"', "x" * 200, "-1", "0", "00", "1e3", "1.5", "+1", "1_0"),
    *("٣", "²"),
    *(str(MOST), str(MOST + 1), str(1 << 64), "9" * 400, "9" * 5000, "9" * 400 + "d", "9" * 5000 + "s"),
    *("hawser://", "hawser://h", "hawser://h:0", "hawser://h:٣", "hawser://:1", "hawser://h:99999","shm://"),
    *("a{9999999999999}", "(", "[[a]", "(?P<a>b)(?P<a>c)", "(" * 3000 + ")" * 3000, "(?i", "\\"),
    *("{", "{}", "[]", "null", "true", "NaN", "1" * 30, '{"a":' * 3000, "[" * 100_000, '{"orders":{}}'),
    *('{"orders": {"x": 1}}', '{"orders": {"-1": 1}}', '{"orders": {"0": 0}}', '{"orders": {"0": -3}}'),
    *('{"orders": {"0": 1e400}}', '{"orders": {"0": 99999999999999999999}}', '{"orders": {"0": true}}'),
    *('{"orders": {"%s": 1}}' % ("9" * 5000), '{"orders": [-1]}', '{"orders": []}', '{"orders": [1.5]}'),
    *('{"orders": [99999999999999999999]}', '{"orders": {"uuid": 5, "began": {"0": 1}}}', "Latest"),
)  # fmt: skip


def names_of(kind: Kind) -> tuple[str, ...]:
    return of_source._NAMES if kind is of_source.Options else of_sink._NAMES


def check(kind: Kind, asked: dict[str, str], streaming: bool) -> None:
    """Parsed into what the rest can count on, or refused in a sentence that names an option."""
    try:
        with warnings.catch_warnings():
            # Those of patterns are about later versions of Python.
            warnings.simplefilter("ignore", FutureWarning)
            found = kind.of(asked, streaming=streaming)
    except UsageError as error:
        assert any(each in str(error) for each in (*names_of(kind), "option", "hawser://", "hawser agent")), (
            str(error)
        )
        return
    for name, value in found._asdict().items():
        if isinstance(value, int):
            assert 0 <= value <= MOST, f"{name}={value}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streaming", [True, False])
def test_each_option_with_each_odd_value(kind: Kind, streaming: bool) -> None:
    for name in names_of(kind):
        for text in ODD:
            others = {"endpoints": RIGHT["endpoints"], "subscribe": "orders", "topic": "orders"}
            asked = {each: other for each, other in others.items() if each in names_of(kind)} | {name: text}
            if name in ("subscribePattern", "assign", "queue"):
                asked = {each: other for each, other in asked.items() if each not in ("subscribe", "topic")}
            if name == "maxTriggerDelay":
                asked["minOffsetsPerTrigger"] = "1"
            check(kind, asked, streaming)


@st.composite
def some_options(draw: Any, kind: Kind) -> dict[str, str]:
    """Some that are right and some that may not be, with names in any case."""
    name = st.sampled_from(names_of(kind))
    asked = {each: RIGHT[each] for each in draw(st.sets(name, max_size=5)) | {"endpoints"}}
    text = st.one_of(
        st.sampled_from(ODD), st.sampled_from(sorted(RIGHT.values())), st.text(max_size=30), documents
    )
    asked |= draw(st.dictionaries(st.one_of(name, name, st.text(max_size=8)), text, max_size=2))
    return {draw(st.sampled_from([each, each.lower(), each.upper()])): value for each, value in asked.items()}


documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "uuid", "x"])),
    lambda inside: st.one_of(
        st.lists(inside, max_size=2),
        st.dictionaries(
            st.sampled_from(["orders", "payments", "0", "1", "-1", "uuid", "began"]), inside, max_size=2
        ),
    ),
    max_leaves=4,
).map(json.dumps)


@given(st.data())
@settings(max_examples=500)
def test_options_together(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    check(kind, data.draw(some_options(kind)), data.draw(st.booleans()))


@pytest.mark.soak
def test_options_for_as_long_as_told(soak_seconds: float) -> None:
    until = time.monotonic() + soak_seconds

    @given(st.data())
    @settings(max_examples=2000, derandomize=False, database=None)
    def some(data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(KINDS))
        check(kind, data.draw(some_options(kind)), data.draw(st.booleans()))

    while time.monotonic() < until:
        some()

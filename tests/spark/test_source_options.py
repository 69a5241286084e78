"""What may be asked of the source; no Spark and no cluster."""

import subprocess
import sys
from typing import Any

import pytest

from hawser import UsageError
from hawser.spark.source.options import EARLIEST, LATEST, Options

PLAIN = {"endpoints": "hawser://h:1,i:2", "subscribe": "orders"}


def batch(**given: str) -> Options:
    return Options.of({**PLAIN, **given}, streaming=False)


def stream(**given: str) -> Options:
    return Options.of({**PLAIN, **given}, streaming=True)


def test_what_is_usual() -> None:
    options = batch()
    assert (options.topics, options.start, options.end) == (("orders",), "earliest", "latest")
    assert options.fail_on_data_loss and not options.with_headers and not options.is_typed
    assert stream().start == "latest"
    assert not options.is_local and Options.of({**PLAIN, "endpoints": "shm://"}, streaming=False).is_local


def test_names_and_words_in_any_case() -> None:
    options = batch(
        INCLUDEHEADERS="True", failondataloss="FALSE", startingoffsets="Earliest", valueformat="JSON"
    )
    assert (options.with_headers, options.fail_on_data_loss, options.value_format) == (True, False, "json")


def test_offsets_in_json() -> None:
    text = '{"orders": {"uuid": "5f0c", "0": 23, "1": -1, "2": -2, "began": {"0": 1}}}'
    assert batch(startingOffsets=text).start == {"orders": {0: 23, 1: LATEST, 2: EARLIEST}}
    assert batch(endingOffsets='{"orders":{"0":7}}').end == {"orders": {0: 7}}


def test_times_in_json() -> None:
    options = batch(startingOffsetsByTimestamp='{"orders":{"0":5}}', endingTimestamp="7")
    assert (options.start_times, options.end_times) == ({"orders": {0: 5}}, 7)
    assert options.fail_on_no_match
    assert not stream(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").fail_on_no_match


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("2min", 120), ("1 h", 3600), ("1d", 86_400), ("500ms", 0.5), ("500", 0.5)],
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert stream(minOffsetsPerTrigger="1", maxTriggerDelay=text).max_delay_seconds == seconds
    assert stream(minOffsetsPerTrigger="1").max_delay_seconds == 900


def test_partitions_are_assigned() -> None:
    given = {"endpoints": "h:1", "assign": '{"b":[2,0,2],"a":[1]}'}
    options = Options.of(given, streaming=False)
    assert (options.topics, options.pattern) == (("b", "a"), None)
    assert list(options.partitions_of("b", 3)) == [0, 2]
    assert list(batch().partitions_of("orders", 3)) == [0, 1, 2]
    with pytest.raises(
        UsageError, match="assign names partition 2 of topic 'b', which has the partitions 0 to 1"
    ):
        options.partitions_of("b", 2)
    for text in ("[]", "{}", '{"a":[]}', '{"a":[-1]}', '{"a":["0"]}', '{"a":0}'):
        with pytest.raises(UsageError, match=r"assign=.* is not JSON such as"):
            Options.of({"endpoints": "h:1", "assign": text}, streaming=False)


def test_topics_are_a_list_or_a_pattern() -> None:
    assert batch(subscribe=" b, a ,,b ").topics == ("b", "a")
    options = Options.of({"endpoints": "h:1", "subscribePattern": "a.*"}, streaming=False)
    assert (options.topics, options.pattern) == ((), "a.*")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"subscrbe": "x"}, "did you mean subscribe"),
        ({"path": "x"}, "give load\\(\\) nothing"),
        ({"zzz": "x"}, "there are endpoints, subscribe"),
        ({"kafka.bootstrap.servers": "h:1"}, "here it is endpoints"),
        ({"kafka.group.id": "g"}, "here it is groupId"),
        ({"endpoints": ""}, "needs option\\(.endpoints"),
        ({"endpoints": "hawser://nowhere"}, "not the URL of a cluster"),
        ({"subscribe": " , "}, "needs option\\(.subscribe"),
        ({"subscribePattern": "a"}, "exclude each other"),
        ({"assign": '{"orders":[0]}'}, "subscribe and assign exclude each other"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "exclude each other"),
        (
            {"startingTimestamp": "5", "startingOffsetsByTimestamp": '{"orders":{"0":5}}'},
            "exclude each other",
        ),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "exclude each other"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "milliseconds since 1970"),
        ({"endingOffsetsByTimestamp": "5"}, "is not JSON such as"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "is about a start by time"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "x"}, "one of error, latest"),
        ({"startingOffsets": "yesterday"}, "is not .earliest., .latest. or JSON"),
        ({"startingOffsets": '{"orders":{"0":0}}'}, "offset; they begin at 1"),
        ({"startingOffsets": '{"orders":{"zero":1}}'}, "or JSON"),
        ({"endingOffsets": "earliest"}, "is not .latest. or JSON"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "no offset"),
        ({"startingTimestamp": "soon"}, "whole number from 0"),
        ({"minPartitions": "0"}, "whole number from 1"),
        ({"maxRecordsPerPartition": "0"}, "whole number from 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"valueFormat": "avro"}, "raw, json, msgpack, arrow"),
        ({"valueFormat": "json", "mode": "DROPMALFORMED"}, "FAILFAST, PERMISSIVE"),
        ({"mode": "PERMISSIVE"}, "give valueFormat with them"),
        ({"valueSchema": "id int"}, "give valueFormat with them"),
        ({"maxOffsetsPerTrigger": "5"}, "for streams"),
        ({"minOffsetsPerTrigger": "5"}, "for streams"),
        ({"groupId": "g"}, "for streams"),
        ({"endpoints": "shm://", "minPartitions": "3"}, "topics of a cluster"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        batch(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"endingTimestamp": "5"}, "a stream has no end: leave endingTimestamp out"),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "exclude each other"),
        ({"maxBytesPerTrigger": "-5"}, "whole number from 1"),
        (
            {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            "=6 is more than maxOffsetsPerTrigger=5",
        ),
        ({"maxTriggerDelay": "5m"}, "give that with it"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"}, "such as 30s, 5m or 1h"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "5 weeks"}, "such as 30s, 5m or 1h"),
        ({"groupId": "g" * 151}, "1 to 150"),
        ({"endpoints": "shm://"}, "read as a batch only"),
    ],
)
def test_what_is_wrong_in_a_stream_is_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        stream(**given)


def run(program: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_module_that_spark_looks_for_brings_nothing_else() -> None:
    """A source that is slow to import, or fails, is in the way of every other one."""
    brought = run(
        "import sys, pyspark.sql.datasource; before = set(sys.modules)\n"
        "import pyspark_hawser; print(*sorted(set(sys.modules) - before))"
    )
    assert brought.split() == ["pyspark_hawser"]


def test_it_can_be_imported_where_there_is_no_spark() -> None:
    program = "import sys; sys.modules['pyspark'] = None\nimport pyspark_hawser; print(dir(pyspark_hawser))"
    assert "DefaultSource" not in run(program)


def test_an_old_spark_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark_hawser

    monkeypatch.setattr("hawser.spark.requirements._installed", lambda name: "4.1.0")
    with pytest.raises(UsageError, match=r"pyspark is 4.1.0, and has to be 4.2 or .*hawser-bus\[spark\]"):
        pyspark_hawser.DefaultSource(dict(PLAIN)).schema()

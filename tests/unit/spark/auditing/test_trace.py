"""Verdicts on what real processes left in a real ring."""

from collections.abc import Iterator

import msgspec
import pyarrow
import pytest

from hawser import Corrupt
from hawser.memory import Domain
from hawser.memory.trace_ring import TraceNames, open_ring
from hawser.record.trace import RECORD_BYTES, trace_key, trace_records
from hawser.spark.pipelines.auditing.lines import Run
from hawser.spark.pipelines.auditing.trace_evidence import trace_evidence
from hawser.spark.pipelines.auditing.verdicts import judge
from hawser.testing import LocalBus

Told = dict[str, tuple[int, int, list[tuple[str, int, int]]]]


class Point(msgspec.Struct):
    x: int


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as found:
        yield found


def told(local: LocalBus) -> Told:
    """Of each tier: how many are expected and found, and what is wrong."""
    domain = Domain.of_url(local.url)
    names, ring = TraceNames(domain), open_ring(domain)
    assert ring is not None
    first, data = ring.read(0, ring.records)
    assert first == 0, "nothing is lost"
    records = list(trace_records(data))
    keys = [
        trace_key(names.region(each.region).name, names.participant(each.region, each.about))
        for each in records
    ]
    batch = pyarrow.record_batch(
        {
            "key": pyarrow.array(keys, pyarrow.binary()),
            "value": pyarrow.array(
                [data[place : place + RECORD_BYTES] for place in range(0, len(data), RECORD_BYTES)]
            ),
            "producer": ["recorder:agent/ring"] * len(records),
            "producer_sequence": [each.position + 1 for each in records],
        }
    )
    made = trace_evidence("trace", 10**15)([batch])
    runs = [Run.of(row) for each in made for row in each.to_pylist()]
    found: Told = {}
    for verdict in judge(runs, None):
        expected, there, words = found.get(verdict.tier, (0, 0, []))
        words = [*words, *(each[:3] for each in verdict.findings)]
        found[verdict.tier] = (expected + verdict.expected, there + verdict.found, words)
    return found


def test_off_and_on_again_while_a_subscriber_stays(local: LocalBus) -> None:
    topic = local.connect("publisher").topic("numbers", trace="metadata")
    with topic.subscribe() as subscription:
        for level, count in (("metadata", 5), (None, 7), ("metadata", 5)):
            local.connect().topic("numbers", trace=level)
            for _ in range(count):
                topic.publish(b"x")
                assert subscription.take_value(60) is not None
    unwitnessed = [("unwitnessed", 6, 12)]
    assert told(local) == {"published": (17, 10, unwitnessed), "delivered": (17, 10, unwitnessed)}


def test_off_and_on_again_while_a_queue_is_worked_on(local: LocalBus) -> None:
    queue = local.connect("worker").queue("jobs", trace="metadata")
    for level, put, accepted in (("metadata", 3, 0), (None, 0, 3), ("metadata", 3, 2)):
        local.connect().queue("jobs", trace=level)
        for _ in range(put):
            queue.put(b"x")
        for _ in range(accepted):
            job = queue.get(60)
            assert job is not None
            job.accept()
    words = [("pending", 6, 6), ("unwitnessed", 1, 3)]
    assert told(local) == {"published": (6, 6, []), "delivered": (6, 2, words)}


def test_a_message_that_was_put_back(local: LocalBus) -> None:
    """One that cannot be decoded ends a batch before it, and is taken for good by the next."""
    topic = local.connect("publisher").topic("points", schema=Point, trace="metadata")
    with topic.subscribe() as subscription:
        raw = Domain.of_url(local.url).open("points").publisher("raw")
        topic.publish(Point(1))
        raw.publish(b"\xff\xff")
        topic.publish(Point(3))
        assert subscription.take_values(10, 0) == [Point(1)]
        with pytest.raises(Corrupt):
            subscription.take_values(10, 0)
        assert subscription.take_values(10, 0) == [Point(3)]
        assert told(local) == {"published": (3, 3, []), "delivered": (3, 3, [])}

"""Tracing on one host: switched while others work, followed by several at once, never in anybody's way."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.memory import Domain
from hawser.memory.temporary_tracing import TemporaryTracing
from hawser.memory.trace_ring import TraceNames, open_ring, switch, trace_of
from hawser.record.trace import (
    TraceRecord,
    region_number,
    split_trace_key,
    trace_columns,
    trace_key,
    trace_records,
)
from hawser.testing import LocalBus
from tests.hostile.test_permissions import SHARED_GROUP, STRANGER, as_user, root_only
from tests.support.children import Channel, Child, sleep_for_ever, victim
from tests.support.processes import hawser_command, until


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as made:
        yield made


@pytest.fixture
def domain(local: LocalBus) -> Domain:
    return Domain.of_url(local.url)


def records_of(domain: Domain) -> list[TraceRecord]:
    """All that the ring has."""
    ring, records = open_ring(domain), list[TraceRecord]()
    while len(records) < ring.head:
        first, data = ring.read(len(records), 1000)
        assert first == len(records)
        records += trace_records(data)
    return records


def level(topic: "hawser.Topic[Any] | hawser.Queue[Any]") -> object:
    return topic.info().settings["trace"]


def test_the_setting_switches_and_contradicts_nobody(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("t")
    assert level(topic) is None and not (local.directory / ".trace").exists()
    other = local.connect()
    assert level(other.topic("t", trace="payload")) == "payload"
    assert level(topic) == "payload"
    assert level(local.connect().topic("t")) == "payload"
    assert level(local.connect().topic("t", create=False, trace=None)) is None
    queue = bus.queue("q", trace="metadata")
    assert level(queue) == "metadata" and "trace" not in queue.info().unused


def test_records_as_tuples_and_as_columns(local: LocalBus, domain: Domain) -> None:
    topic = local.connect("writer").topic("t", trace="metadata")
    topic.publish_many([b"a", b"bb", b"ccc"])
    _, data = open_ring(domain).read(0, 100)
    records = list(trace_records(data))
    columns = trace_columns(data)
    assert [(each.what, each.sequence, each.value) for each in records] == [
        ("switched", 0, 1),
        ("subscribe", 0, 1),
        ("publish", 1, 1),
        ("publish", 2, 2),
        ("publish", 3, 3),
    ]
    assert columns["place"].tolist() == [each.position + 1 for each in records]
    for field in ("time_ns", "region", "sequence", "owner", "kind", "deliveries", "pid", "value"):
        assert columns[field].tolist() == [getattr(each, field) for each in records], field
    assert {each.region for each in records} == {region_number(topic.info().uuid)}


def test_keys_keep_names_apart() -> None:
    assert split_trace_key(trace_key("camera/front", "me")) == ("camera/front", "me")
    assert split_trace_key(trace_key("", "")) == ("", "")
    with pytest.raises(ValueError, match="is not the key"):
        split_trace_key(b"camera/front")


def test_names_are_remembered_when_all_is_gone(local: LocalBus, domain: Domain) -> None:
    names = TraceNames(domain)
    with local.connect("short-lived") as bus:
        topic = bus.topic("t", trace="metadata")
        topic.publish(b"x")
    # It has left, and is still known where it was.
    (region,) = {each.region for each in records_of(domain)}
    owner = records_of(domain)[-1].owner
    assert names.participant(region, owner) == "short-lived"
    local.connect().topic("t").delete()
    assert names.region(region) == ("topic", "t")
    assert names.participant(region, owner) == "short-lived"
    assert names.participant(region, owner + 1) == ""
    assert TraceNames(domain).region(region) == ("", "")
    assert TraceNames(domain).participant(region, owner) == ""


def test_a_look_that_failed_is_repeated(
    local: LocalBus, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = local.connect("writer").topic("t", trace="metadata")
    topic.publish(b"x")
    record, names = records_of(domain)[-1], TraceNames(domain)

    def fail(self: Domain, name: str) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Domain, "label_of", fail)
        assert names.region(record.region) == ("", "")
        assert names.participant(record.region, record.owner) == ""
    until(lambda: names.region(record.region) == ("topic", "t"), "it is found")
    assert names.participant(record.region, record.owner) == "writer"


def test_the_size_of_a_ring_is_chosen_by_who_makes_it(
    local: LocalBus, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = local.connect()
    for wrong in ("many", "-1", "15", str(1 << 25)):
        monkeypatch.setenv("HAWSER_TRACE_RECORDS", wrong)
        with pytest.raises(hawser.UsageError, match="HAWSER_TRACE_RECORDS"):
            bus.topic("t", trace="metadata")
    monkeypatch.setenv("HAWSER_TRACE_RECORDS", "128")
    bus.topic("t", trace="metadata")
    monkeypatch.setenv("HAWSER_TRACE_RECORDS", "256")
    bus.topic("t", trace="metadata")
    assert open_ring(domain).records == 128


def test_without_a_ring_it_says_how_to_get_one(local: LocalBus, domain: Domain) -> None:
    local.connect().topic("t")
    with pytest.raises(hawser.NotFound, match="hawser topic trace --on"):
        open_ring(domain)


def test_the_last_who_looks_switches_off(local: LocalBus, domain: Domain) -> None:
    topic = local.connect().topic("t")
    with TemporaryTracing(domain) as first:
        first.cover("t")
        with TemporaryTracing(domain) as second, TemporaryTracing(domain) as third:
            second.cover("t")
            third.cover("t")
            third.cover("absent")
        assert level(topic) == "metadata"
    assert level(topic) is None


def test_what_is_traced_for_good_stays_so(local: LocalBus, domain: Domain) -> None:
    topic = local.connect().topic("t", trace="payload")
    with TemporaryTracing(domain) as first, TemporaryTracing(domain) as second:
        first.cover("t")
        second.cover("t")
    assert level(topic) == "payload"


def test_one_that_is_killed_is_not_waited_for(local: LocalBus, domain: Domain) -> None:
    topic = local.connect().topic("t")

    def look(channel: Channel) -> None:
        TemporaryTracing(Domain.of_url(local.url)).cover("t")
        channel.tell("looking")
        sleep_for_ever()

    with TemporaryTracing(domain) as other:
        with victim(look) as child:
            child.hear()
            other.cover("t")
        assert level(topic) == "metadata"
    # The last one alive.
    assert level(topic) is None
    with victim(look) as child:
        child.hear()
    assert level(topic) == "metadata"
    with TemporaryTracing(domain) as another:
        another.cover("t")
    assert level(topic) is None


@pytest.mark.parametrize("trace", ["metadata", "payload"])
def test_an_order_outlasts_those_who_look(local: LocalBus, domain: Domain, trace: str) -> None:
    topic = local.connect().topic("t")
    with TemporaryTracing(domain) as tracing:
        tracing.cover("t")
        assert level(local.connect().topic("t", trace=trace)) == trace
    assert level(topic) == trace
    with TemporaryTracing(domain) as tracing:
        tracing.cover("t")
        local.connect().topic("t", trace=None)
    assert level(topic) is None


def test_who_is_deleted_is_no_trouble_for_the_others(local: LocalBus, domain: Domain) -> None:
    bus = local.connect()
    first, last = bus.topic("a"), bus.topic("b")
    with TemporaryTracing(domain) as tracing:
        tracing.cover("a")
        tracing.cover("b")
        first.delete()
    assert level(last) is None


def test_a_ring_made_anew_takes_all_along(local: LocalBus, domain: Domain) -> None:
    bus = local.connect()
    first, last = bus.topic("a", trace="metadata"), bus.topic("b", trace="payload")
    last.publish(b"x")
    (local.directory / ".trace").unlink()
    last.publish(b"x")
    assert level(bus.topic("a", trace="metadata")) == "metadata"
    first.publish(b"x")
    last.publish(b"x")
    numbers = {region_number(topic.info().uuid): topic.name for topic in (first, last)}
    published = [
        (numbers[each.region], each.sequence) for each in records_of(domain) if each.what == "publish"
    ]
    assert published == [("a", 1), ("b", 3)]
    assert level(last) == "payload"


def test_one_that_is_made_anew_is_traced_again(local: LocalBus, domain: Domain) -> None:
    bus = local.connect()
    with TemporaryTracing(domain) as tracing:
        bus.topic("t")
        tracing.cover("t")
        bus.topic("t").delete()
        topic = bus.topic("t")
        assert level(topic) is None
        tracing.cover("t")
        assert level(topic) == "metadata"
    assert level(topic) is None


def test_switched_in_a_storm(local: LocalBus, domain: Domain, tmp_path: Path, record_property: Any) -> None:
    topic = local.connect().topic("t", slot_size=64)
    region = domain.open("t")
    enough = tmp_path / "enough"

    def publish(channel: Channel) -> None:
        own = hawser.connect(local.url).topic("t")
        while not enough.exists():
            own.publish_many([b"x"] * 5)

    with Child(publish), Child(publish):
        until(lambda: topic.info().head > 0, "somebody publishes")
        for number in range(300):
            switch(domain, region, number % 3)
        switch(domain, region, 1)
        head = topic.info().head
        until(lambda: topic.info().head > head + 100, "somebody publishes on")
        enough.touch()
    region.close()
    _, data = open_ring(domain).read(0, 10_000_000)
    published = [each.sequence for each in trace_records(data) if each.what == "publish"]
    assert 100 < len(set(published)) == len(published) <= topic.info().head
    record_property("published", topic.info().head)
    record_property("traced, and not lost", len(published))


@root_only
def test_a_group_shares_its_ring(local: LocalBus, domain: Domain, request: pytest.FixtureRequest) -> None:
    groups = os.getgroups()
    request.addfinalizer(lambda: os.setgroups(groups))
    os.setgroups([*groups, SHARED_GROUP])
    os.chown(local.directory, 0, SHARED_GROUP)
    bus = local.connect(mode="group")
    topic = bus.topic("t")

    def work() -> None:
        with hawser.connect(local.url, name="stranger") as own:
            own.topic("t", create=False, trace="metadata").publish(b"theirs")

    as_user(STRANGER, [SHARED_GROUP], work)
    topic.publish(b"ours")
    found = os.stat(local.directory / ".trace")
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (STRANGER, SHARED_GROUP, 0o660)
    assert [each.sequence for each in records_of(domain) if each.what == "publish"] == [1, 2]
    with TemporaryTracing(domain) as tracing:
        tracing.cover("t")
    assert level(topic) == "metadata"
    assert sorted(each.state for each in bus.files()) == ["lock", "topic", "trace"]


def test_a_link_in_place_of_a_ring(local: LocalBus, domain: Domain, tmp_path: Path) -> None:
    topic = local.connect().topic("t")
    (local.directory / ".trace").symlink_to(tmp_path / "elsewhere")
    for look in (lambda: local.connect().topic("t", trace="metadata"), lambda: TemporaryTracing(domain)):
        with pytest.raises(hawser.PermissionDenied, match=r"\.trace"):
            look()
    assert not (tmp_path / "elsewhere").exists()
    topic.publish(b"x")
    assert level(topic) is None


def test_a_ring_that_cannot_be_used_harms_nobody(local: LocalBus, domain: Domain) -> None:
    topic = local.connect("writer").topic("t", trace="metadata")
    (local.directory / ".trace").unlink()
    (local.directory / ".trace").write_bytes(b"scribble" * 1000)
    # A process that has the ring mapped would not notice.
    hawser_command("topic", "pub", "t", "x", "--count", "5", "--url", local.url)
    assert topic.info().head == 5
    region = domain.open("t")
    try:
        assert region.tracing[2] >= 5 and trace_of(region) == "metadata"
    finally:
        region.close()
    with pytest.raises(hawser.Corrupt, match=r"\.trace"):
        open_ring(domain)


def test_one_that_is_stopped_while_it_decides_is_told_of(
    local: LocalBus, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hawser.memory import temporary_tracing

    monkeypatch.setattr(temporary_tracing, "_PATIENCE_SECONDS", 0.1)
    local.connect().topic("t")

    def stand_still(channel: Channel) -> None:
        with TemporaryTracing(Domain.of_url(local.url))._decision():
            channel.tell("deciding")
            sleep_for_ever()

    with victim(stand_still) as child:
        child.hear()
        os.kill(child.pid, signal.SIGSTOP)
        tracing = TemporaryTracing(domain)
        with pytest.raises(hawser.Timeout, match="hangs while"):
            tracing.cover("t")
    # Its death ends that.
    tracing.cover("t")
    tracing.close()

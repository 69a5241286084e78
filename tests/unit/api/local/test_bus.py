"""The bus: identity, topics opened once, what it reports, and how it ends."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import hawser
from hawser.testing import LocalBus


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


def test_a_topic_is_opened_once(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("t", history=3)
    assert bus.topic("t") is topic
    assert bus.topic("t", history=3) is topic
    topic.close()
    again = bus.topic("t")
    assert again is not topic
    assert again.info().settings["history"] == 3
    with pytest.raises(hawser.Closed):
        topic.publish(b"x")


def test_a_contradiction_changes_nothing(local: LocalBus) -> None:
    local.connect().topic("t", history=3).publish(b"kept")
    for bus in (local.connect(), local.connect("other")):
        with pytest.raises(hawser.SettingsMismatch, match=r"history=4.*history=3"):
            bus.topic("t", history=4)
        assert [bytes(each) for each in bus.topic("t").read_newest(9).samples] == [b"kept"]
        with pytest.raises(hawser.SettingsMismatch, match=r"slot_size=1 .*slot_size=65536"):
            bus.topic("t", slot_size=1)


def test_settings_that_fit_the_existing_topic_need_no_others(local: LocalBus) -> None:
    local.connect().topic("t", max_held=4096, max_subscribers=8)
    assert local.connect().topic("t", max_held=4096).info().settings["max_subscribers"] == 8
    with pytest.raises(hawser.UsageError, match="slots"):
        local.connect().topic("u", max_held=4096)
    assert local.connect().topics() == ["t"]


def test_a_bus_has_a_name(local: LocalBus) -> None:
    assert local.connect("perception").name == "perception"
    anonymous = local.connect()
    assert anonymous.name.startswith(f"anonymous-{os.getpid()}-")
    assert anonymous.name != local.connect().name
    for wrong in ("", "a\nb", "x" * 64, "group:x"):
        with pytest.raises(hawser.UsageError):
            local.connect(wrong)
    with pytest.raises(hawser.UsageError, match="colour"):
        local.connect(colour="red")


def test_participants_are_told(local: LocalBus) -> None:
    bus = local.connect("teller")
    topic = bus.topic("t")
    topic.publish(b"x")
    subscription = topic.subscribe(reliable=True)
    found = {each.kind: each for each in local.connect().participants()}
    assert set(found) == {"publisher", "subscriber"}
    for each in found.values():
        assert (each.topic, each.name, each.pid, each.uid) == ("t", "teller", os.getpid(), os.geteuid())
        assert each.alive
        assert each.state == "active"
    assert found["publisher"].count == 1
    assert found["subscriber"].reliable == "reliable"
    subscription.close()
    topic.close()
    assert bus.participants() == []


def test_who_is_forgotten_leaves(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("t", max_subscribers=1, max_publishers=1)
    for _ in range(3):
        topic.subscribe().take(0)
        topic.publisher().publish(b"x")
        gc.collect()
    assert bus.participants() == []


def test_a_closed_bus_has_left_everything(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("t")
    subscription = topic.subscribe()
    publisher = topic.publisher()
    topic.publish(b"held")
    sample = subscription.take(0)
    assert sample is not None
    bus.close()
    bus.close()
    assert bytes(sample) == b"held"
    for call in (bus.topics, bus.participants, bus.recover, topic.info, topic.subscribe, subscription.take):
        with pytest.raises(hawser.Closed):
            call()
    for publishing in (topic, publisher):
        with pytest.raises(hawser.Closed):
            publishing.publish(b"x")
    with pytest.raises(hawser.Closed):
        bus.topic("t")
    sample.release()
    assert local.connect().participants() == []


def test_a_topic_made_anew_is_a_new_one(local: LocalBus) -> None:
    ours, theirs = local.connect(), local.connect()
    old = ours.topic("t", history=1)
    old.publish(b"x")
    subscription = old.subscribe()
    with pytest.raises(hawser.UsageError, match="in use by"):
        theirs.topic("t").delete()
    theirs.topic("t").delete(force=True)
    assert ours.topics() == []
    with pytest.raises(hawser.Closed):
        old.publish(b"y")
    with pytest.raises(hawser.Closed):
        subscription.take(0)
    with pytest.raises(hawser.Closed):
        next(subscription)
    new = ours.topic("t", history=2)
    assert new.publish(b"z").first_offset == 1


def test_a_bus_in_a_forked_child_is_refused(local: LocalBus) -> None:
    bus = local.connect("parent")
    topic = bus.topic("t")
    topic.publish(b"x")
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            for call in (bus.topics, lambda: bus.topic("u"), lambda: topic.publish(b"y")):
                with pytest.raises(hawser.UsageError):
                    call()
            bus.close()
            with hawser.connect(local.url) as own:
                own.topic("t").publish(b"child")
            outcome = 0
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    topic.publish(b"z")
    assert [bytes(each) for each in topic.read_oldest(9).samples] == [b"x", b"child", b"z"]


def test_the_next_run_recovers_the_last(local: LocalBus) -> None:
    local.connect().topic("t")
    program = (
        "import hawser, os, sys, signal\n"
        "topic = hawser.connect(sys.argv[1], name='worker').topic('t')\n"
        "topic.publish(b'x'); topic.loan(1); kept = topic.subscribe(history=1).take(0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, local.url], check=False, timeout=60)
    assert ended.returncode == -9
    dead = local.connect().participants()
    assert {(each.name, each.alive) for each in dead} == {("worker", False)}
    bus = local.connect("worker")
    assert bus.participants() == []
    assert bus.recover() == []
    assert bus.topic("t").info().slots_leaked == 0


def test_recovery_says_what_it_did(local: LocalBus) -> None:
    local.connect().topic("t")
    program = (
        "import hawser, os, sys\n"
        "topic = hawser.connect(sys.argv[1], name='worker').topic('t')\n"
        "loan = topic.loan(1)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, local.url], check=False, timeout=60)
    recovered = local.connect().recover()
    assert [(each.topic, each.kind, each.name, each.slots) for each in recovered] == [
        ("t", "publisher", "worker", 1)
    ]


def test_leaving_the_interpreter_leaves_the_topics(local: LocalBus) -> None:
    program = (
        "import hawser, sys\n"
        "topic = hawser.connect(sys.argv[1], name='worker').topic('t')\n"
        "topic.publish(b'x')\n"
        "subscription = topic.subscribe(history=1)\n"
        "sample = subscription.take(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, local.url],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert local.connect().participants() == []


def test_an_unreadable_topic_does_not_hide_the_others(
    local: LocalBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus = local.connect()
    bus.topic("good").publish(b"x")
    (local.directory / "bad.topic").write_bytes(b"nonsense" * 1000)
    assert [each.topic for each in bus.participants()] == ["good"]
    assert "bad" in caplog.text
    with pytest.raises(hawser.Corrupt, match=r"bad\.topic"):
        bus.topic("bad")

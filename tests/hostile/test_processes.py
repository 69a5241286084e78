"""Processes that exec, close everything, turn into daemons or zombies, stop, or are interrupted."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.builds import Build
from tests.support.children import Channel, Child, sleep_for_ever, victim
from tests.support.namespaces import InNamespace
from tests.support.processes import until
from tests.support.standing import state_of

SETTINGS: dict[str, Any] = {"slot_size": 64, "history": 2, "depth": 2}


def alive(topic: hawser.Topic[Any], name: str) -> list[bool]:
    return [each.alive for each in topic.info().participants if each.name == name]


def take(subscription: hawser.Subscription[Any]) -> hawser.Sample:
    sample = subscription.take(10)
    assert sample is not None
    return sample


def test_exec_ends_a_participant(local: LocalBus) -> None:
    topic = local.connect().topic("exec", **SETTINGS)

    def change_into_another_program(channel: Channel) -> None:
        own = hawser.connect(local.url, name="changing").topic("exec")
        subscription = own.subscribe()
        channel.tell(str(subscription.position))
        channel.hear()
        os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(60)"])

    with victim(change_into_another_program) as child:
        child.hear()
        assert alive(topic, "changing") == [True]
        child.tell("go")
        until = time.monotonic() + 20
        while any(alive(topic, "changing")) and time.monotonic() < until:
            time.sleep(0.01)
        assert alive(topic, "changing") == [False]
        os.kill(child.pid, 0)


def test_closed_descriptors_change_nothing(local: LocalBus) -> None:
    topic = local.connect().topic("closed", **SETTINGS)

    def close_everything(channel: Channel) -> None:
        own = hawser.connect(local.url, name="closing").topic("closed")
        publisher, subscription = own.publisher(), own.subscribe()
        kept = channel._end.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, 4096)
        channel.tell("closed")
        channel.hear()
        publisher.publish(b"still here")
        channel.tell(bytes(take(subscription)).decode())
        channel.hear()

    with Child(close_everything) as child:
        child.hear()
        assert alive(topic, "closing") == [True, True]
        local.connect("another").recover()
        assert alive(topic, "closing") == [True, True]
        child.tell("go")
        assert child.hear() == "still here"
        child.tell("end")


def test_a_daemon_connects_after_it_has_detached(local: LocalBus) -> None:
    topic = local.connect().topic("daemon", **SETTINGS)
    subscription = topic.subscribe()

    def detach(channel: Channel) -> None:
        too_early = hawser.connect(local.url, name="too-early").topic("daemon")
        too_early.publish(b"from the first life")
        os.setsid()
        if os.fork():
            os._exit(0)
        try:
            too_early.publish(b"never")
        except hawser.UsageError:
            hawser.connect(local.url, name="daemon").topic("daemon").publish(b"from the daemon")
        channel.tell("done")

    with Child(detach) as child:
        assert child.hear() == "done"
        assert [bytes(take(subscription)) for _ in range(2)] == [b"from the first life", b"from the daemon"]
        child.join()
    assert not any(alive(topic, "too-early"))


def test_a_zombie_is_dead(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("zombie", **SETTINGS)
    topic.publish(b"x")

    def hold_a_sample(channel: Channel) -> None:
        subscription = hawser.connect(local.url, name="zombie").topic("zombie").subscribe(history=1)
        sample = take(subscription)
        channel.tell(str(sample.offset))
        sleep_for_ever()

    with victim(hold_a_sample) as child:
        child.hear()
        child.signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert alive(topic, "zombie") == [False]
        recovered = bus.recover()
        assert [(each.name, each.references, each.complete) for each in recovered] == [("zombie", 1, True)]


LIVE_INSIDE = """
own = hawser.connect(sys.argv[2], name="inside").topic("namespace")
own.publish(f"process {os.getpid()}".encode())
print(sorted(each.name for each in own.info().participants if each.alive), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a pid namespace")
def test_liveness_reaches_across_pid_namespaces(local: LocalBus) -> None:
    bus = local.connect("outside")
    topic = bus.topic("namespace", **SETTINGS)
    subscription = topic.subscribe()
    with InNamespace(LIVE_INSIDE, local.url) as process:
        assert process.said == "['inside', 'outside']"
        assert bytes(take(subscription)) == b"process 1"
        assert alive(topic, "inside") == [True]
        assert bus.recover() == []
        process.kill()
        assert [each.name for each in bus.recover()] == ["inside"]


def test_a_stopped_process_is_alive_and_in_nobodys_way(local: LocalBus) -> None:
    bus = local.connect()
    topic = bus.topic("stopped", **SETTINGS)
    subscription = topic.subscribe()

    def hold_and_publish(channel: Channel) -> None:
        own = hawser.connect(local.url, name="stopped").topic("stopped")
        with own.subscribe(history=1) as mine, own.loan(8) as buffer:
            sample = take(mine)
            channel.tell("ready")
            buffer[:] = b"released" if channel.hear() == "go" else b"mistaken"
            assert bytes(sample) == b"held"

    topic.publish(b"held")
    with Child(hold_and_publish) as child:
        child.hear()
        child.signal(signal.SIGSTOP)
        for number in range(100):
            topic.publish(b"%d" % number)
            assert subscription.take(0) is not None
        assert bus.recover() == []
        assert alive(topic, "stopped") == [True, True]
        child.signal(signal.SIGCONT)
        child.tell("go")
        child.join()
    assert bytes(topic.read_newest(1).samples[0]) == b"released"


def test_a_stopped_reliable_subscriber_is_named_and_its_death_frees_the_way(local: LocalBus) -> None:
    topic = local.connect().topic("reliable", **SETTINGS)

    def subscribe_reliably(channel: Channel) -> None:
        subscription = hawser.connect(local.url, name="slowpoke").topic("reliable").subscribe(reliable=True)
        channel.tell(str(subscription.position))
        sleep_for_ever()

    with victim(subscribe_reliably) as child:
        child.hear()
        child.signal(signal.SIGSTOP)
        with pytest.raises(hawser.Full, match=f"slowpoke.*{child.pid}") as refused:
            topic.publish_many([b"x"] * 10, timeout=0.2)
        assert refused.value.published == 4
        child.kill()
        assert topic.publish(b"y", timeout=10).first_offset == 5


def interrupted(channel: Channel, wait: Callable[[], object]) -> None:
    """Say when waiting begins, and how it ended."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        channel.tell("waiting")
        wait()
        channel.tell("it returned")
    except KeyboardInterrupt:
        channel.tell("interrupted")


def test_waiting_can_be_interrupted(local: LocalBus) -> None:
    topic = local.connect().topic("interrupt", **SETTINGS)
    slow = topic.subscribe(reliable=True)

    def wait_for_everything(channel: Channel) -> None:
        own = hawser.connect(local.url, name="waiting").topic("interrupt")
        subscription = own.subscribe()
        interrupted(channel, subscription.take)
        interrupted(channel, lambda: next(subscription))
        assert [own.publish(b"x").first_offset for _ in range(4)] == [1, 2, 3, 4]
        interrupted(channel, lambda: own.publish(b"y"))
        interrupted(channel, lambda: own.publish_many([b"y"]))
        loan = own.loan(1)
        loan.__enter__()
        interrupted(channel, lambda: loan.__exit__(None, None, None))
        assert own.info().slots_lent == 0
        channel.tell(str(len(subscription.take_many(4, 0))))
        channel.hear()

    with Child(wait_for_everything) as child:
        for _ in range(5):
            assert child.hear() == "waiting"
            until(lambda: state_of(child.pid) == "S", "it sleeps")
            child.signal(signal.SIGINT)
            assert child.hear() == "interrupted"
        assert child.hear() == "4"
        assert topic.info().head == 4
        assert len(slow.take_many(4, 0)) == 4
        child.tell("end")


EXIT_WITH_EVERYTHING_ALIVE = """
import contextlib, sys, threading, hawser
bus = hawser.connect(sys.argv[1], name="leaving")
topic = bus.topic("exit")
publisher, subscription = topic.publisher(), topic.subscribe(history=2)
samples = subscription.take_many(2, 0)
views = [sample.data for sample in samples]
loan = publisher.loan(4)
buffer = loan.__enter__()

def wait():
    # The bus is closed at the end of the process; the thread hears of it if it runs once more before that.
    with contextlib.suppress(hawser.Closed):
        topic.subscribe().take()

waiting = threading.Thread(target=wait, daemon=True)
waiting.start()
keep = [lambda: (samples, views, loan, buffer)]
keep.append(keep)
if sys.argv[2] == "error":
    raise SystemExit(3)
"""


@pytest.mark.parametrize(("way", "status"), [("plain", 0), ("error", 3)])
def test_an_interpreter_ends_with_samples_alive(local: LocalBus, way: str, status: int) -> None:
    topic = local.connect().topic("exit", **SETTINGS)
    topic.publish_many([b"one", b"two"])
    done = Build().run("-c", EXIT_WITH_EVERYTHING_ALIVE, local.url, way)
    assert (done.returncode, done.stderr) == (status, "")
    local.connect("after").recover()
    info = topic.info()
    assert (info.slots_lent, info.slots_referenced, info.slots_leaked, info.head) == (0, 0, 0, 2)

"""The dead are recovered by the agent alone, because the kernel told it of their death: nobody else looks
here, and these agents look at everything only once, when they start."""

import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hawser
from hawser.testing import LocalBus
from tests.agent.support import Agent
from tests.support.children import Channel, sleep_for_ever, victim
from tests.support.namespaces import InNamespace
from tests.support.processes import until

Record = Callable[[str, object], None]

TAKE_PART_INSIDE = """
own = hawser.connect(sys.argv[2], name="victim").topic("x")
subscription = own.subscribe()
own.publish(b"sample")
held = subscription.take(timeout=60)
loan = own.loan(8)
loan.__enter__()
print("ready", flush=True)
"""
SETTINGS: dict[str, Any] = {"slot_size": 64, "history": 8}


def take_part(local: LocalBus, topic: str, samples: int = 10, **settings: Any) -> Callable[[Channel], None]:
    """Publish and take so many, hold the last one and a loan, say so, and wait for the end."""

    def work(channel: Channel) -> None:
        own = hawser.connect(local.url, name="victim").topic(topic, **settings)
        subscription = own.subscribe()
        held: list[hawser.Sample | None] = []
        for _ in range(samples):
            held.clear()
            own.publish(b"sample")
            held.append(subscription.take(timeout=60))
        with own.loan(8):
            channel.tell("ready")
            sleep_for_ever()

    return work


def kill_one(agent: Agent, local: LocalBus, topic: str, **options: Any) -> float:
    """Seconds from the kill of somebody who takes part in both ways until the agent has recovered it."""
    before = agent.figure("agent_recovered_total")
    with victim(take_part(local, topic, **options)) as child:
        child.hear()
        began = time.time()
        child.kill()
        agent.until_figure(before + 2, "agent_recovered_total")
        return agent.last_recovery() - began


def test_the_dead_are_recovered_when_they_die(agent: Agent, local: LocalBus, record_property: Record) -> None:
    local.connect().topic("x", **SETTINGS)
    seconds = [kill_one(agent, local, "x") for _ in range(5)]
    figures = agent.figures()
    for kind in ("publisher", "subscriber"):
        assert figures["hawser_topic_recoveries_total", "x", kind] == 5
        assert figures["hawser_topic_participants", "x", kind, "alive"] == 0
        assert figures["hawser_topic_participants", "x", kind, "dead"] == 0
    for use in ("lent", "referenced", "leaked"):
        assert figures["hawser_topic_slots", "x", use] == 0
    assert figures["hawser_topic_published_total", "x"] == 50
    assert figures["hawser_topic_received_total", "x"] == 50
    record_property("milliseconds from kill to recovery", [round(each * 1000) for each in seconds])


def test_nobody_is_recovered_who_lives(agent: Agent, local: LocalBus) -> None:
    """Stopped is not dead."""
    local.connect().topic("x", **SETTINGS)
    with victim(take_part(local, "x")) as stopped:
        stopped.hear()
        stopped.signal(signal.SIGSTOP)
        kill_one(agent, local, "x")
        assert agent.figure("topic_participants", "x", "publisher", "alive") == 1
        assert agent.figure("topic_slots", "x", "lent") == 1
        assert agent.figure("agent_recovered_total") == 2
        stopped.kill()
        agent.until_figure(4, "agent_recovered_total")


def test_exec_is_a_death(agent: Agent, local: LocalBus) -> None:
    topic = local.connect().topic("x", **SETTINGS)

    def change(channel: Channel) -> None:
        subscription = hawser.connect(local.url).topic("x").subscribe()
        channel.tell(str(subscription.position))
        channel.hear()
        os.execv("/bin/sleep", ["sleep", "60"])

    with victim(change) as child:
        child.hear()
        child.tell("go")
        agent.until_figure(1, "topic_recoveries_total", "x", "subscriber")
        assert topic.info().participants == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a pid namespace")
def test_a_death_in_another_pid_namespace(agent: Agent, local: LocalBus) -> None:
    local.connect().topic("x", **SETTINGS)

    with InNamespace(TAKE_PART_INSIDE, local.url) as process:
        assert agent.figure("topic_participants", "x", "subscriber", "alive") == 1
        process.kill()
        agent.until_figure(2, "agent_recovered_total")


def test_the_dead_of_before_are_recovered_at_the_start(local: LocalBus, tmp_path: Path) -> None:
    local.connect().topic("x", **SETTINGS)
    with victim(take_part(local, "x")) as child:
        child.hear()
    with Agent(local, tmp_path) as agent:
        assert agent.figure("agent_recovered_total") == 2


def test_two_agents_recover_each_once(agent: Agent, local: LocalBus, tmp_path: Path) -> None:
    local.connect().topic("x", **SETTINGS)
    with Agent(local, tmp_path) as other:
        for lives in range(1, 11):
            with victim(take_part(local, "x", samples=1)) as child:
                child.hear()
            agent.until_figure(lives, "topic_recoveries_total", "x", "publisher")
            agent.until_figure(lives, "topic_recoveries_total", "x", "subscriber")
        recovered = [each.figure("agent_recovered_total") for each in (agent, other)]
        assert sum(recovered) == 20, recovered


def test_a_new_domain_is_found_and_followed(agent: Agent, local: LocalBus) -> None:
    """The directory is removed with everything in it, and made anew, which only looking finds."""
    kill_one(agent, local, "x", **SETTINGS)
    agent.kill()
    agent.look_every("0.1")
    agent.start()
    local.directory.joinpath("x.topic").unlink()
    local.directory.joinpath(".lock").unlink()
    local.directory.rmdir()
    until(lambda: agent.figure("agent_topics") == 0, "the topic is let go of")
    local.directory.mkdir(mode=0o700)
    kill_one(agent, local, "y", **SETTINGS)
    assert agent.figure("topic_published_total", "y") == 10


def test_topics_come_and_go_as_if_there_were_no_agent(agent: Agent, local: LocalBus) -> None:
    bus = local.connect()
    for life in range(1, 4):
        topic = bus.topic("x", **SETTINGS)
        for _ in range(life):
            topic.publish(b"sample")
        agent.until_figure(life, "topic_published_total", "x")
        topic.delete()
        until(lambda: agent.figure("agent_topics") == 0, "the topic is let go of")
        maps = Path(f"/proc/{agent.process_id}/maps").read_text()
        assert str(local.directory) not in maps


def test_an_ephemeral_topic_ends_with_its_last_participant(agent: Agent, local: LocalBus) -> None:
    path = local.directory / "x.topic"
    with local.connect() as bus:
        bus.topic("x", ephemeral=True, **SETTINGS).publish(b"sample")
        agent.until_figure(1, "topic_published_total", "x")
    assert not path.exists()
    with victim(take_part(local, "x", ephemeral=True, **SETTINGS)) as child:
        child.hear()
        agent.until_figure(10, "topic_published_total", "x")
        assert path.exists()
    until(lambda: not path.exists(), "what the dead left is removed")
    until(lambda: agent.figure("agent_topics") == 0, "the topic is let go of")


def test_an_ephemeral_topic_that_somebody_only_had_open(agent: Agent, local: LocalBus) -> None:
    def open_it(channel: Channel) -> None:
        hawser.connect(local.url).topic("x", ephemeral=True, **SETTINGS)
        channel.tell("ready")
        sleep_for_ever()

    with victim(open_it) as child:
        child.hear()
        until(lambda: agent.figure("agent_topics") == 1, "the topic is found")
    until(lambda: not (local.directory / "x.topic").exists(), "what the dead left is removed")


def test_what_is_no_topic_is_left_alone(agent: Agent, local: LocalBus) -> None:
    # There at once: an empty one would be refused for another reason.
    (local.directory / "junk").write_bytes(b"junk" * 1000)
    (local.directory / "junk").rename(local.directory / "junk.topic")
    (local.directory / "folder.topic").mkdir()
    (local.directory / "link.topic").symlink_to("junk.topic")
    (local.directory / "notes.txt").write_text("not a topic")
    os.mkfifo(local.directory / "pipe.topic")
    kill_one(agent, local, "x", **SETTINGS)
    agent.kill()
    agent.look_every("0.02")
    agent.start()
    before = agent.figure("agent_looks_total")
    agent.until_figure(before + 100, "agent_looks_total")
    assert agent.figure("agent_topics") == 1
    refused = [text for text in agent.messages() if "is left out" in text]
    # Once each, however often they are looked at: by the first agent on news, by the second at its start.
    assert len([text for text in refused if "'junk'" in text]) == 2, refused
    assert len(refused) == len(set(refused)) * 2
    assert (local.directory / "junk.topic").read_bytes() == b"junk" * 1000


def test_a_damaged_topic_does_not_hide_the_others(agent: Agent, local: LocalBus) -> None:
    local.connect().topic("damaged", **SETTINGS)
    agent.kill()
    with (local.directory / "damaged.topic").open("r+b") as file:
        # The state of the first entry is none that there is.
        file.seek(4096)
        file.write((77).to_bytes(8, "little"))
    agent.start()
    kill_one(agent, local, "x", **SETTINGS)
    assert any("'damaged'" in text and "impossible state" in text for text in agent.messages())


def looks_a_second(agent: Agent) -> float:
    """When there is nothing new; what the agent causes itself is not new."""
    time.sleep(1)
    before, began = agent.figure("agent_looks_total"), time.monotonic()
    time.sleep(2)
    return (agent.figure("agent_looks_total") - before) / (time.monotonic() - began)


def test_a_recoverer_that_is_stopped_keeps_nobody_awake(agent: Agent, local: LocalBus) -> None:
    """To try again opens the file, and to close it is news."""
    topic = local.connect().topic("x", **SETTINGS)
    descriptor = os.open(local.directory / "x.topic", os.O_RDWR)
    with victim(take_part(local, "x")) as child:
        child.hear()
        # The recovery byte of every entry.
        every = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 2 << 32, 1 << 31, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, every)
        child.kill()
        until(lambda: agent.figure("topic_participants", "x", "subscriber", "dead") == 1, "a death")
        assert looks_a_second(agent) < 50
    os.close(descriptor)
    agent.until_figure(2, "agent_recovered_total")
    assert topic.info().participants == []


def test_a_topic_whose_remover_was_killed_keeps_nobody_awake(agent: Agent, local: LocalBus) -> None:
    """It says that it is closed, and still has its name; looking at it is news, too."""
    file = local.directory / "x.topic"
    local.connect().topic("x", **SETTINGS)
    data = bytearray(file.read_bytes())
    local.connect().topic("x").delete(force=True)
    data[1024:1032] = b"closed\0\0"
    file.write_bytes(data)
    file.chmod(0o600)
    assert looks_a_second(agent) < 50
    assert agent.figure("agent_topics") == 0
    kill_one(agent, local, "x", **SETTINGS)


def test_a_file_that_is_cut_short_does_not_end_the_agent(agent: Agent, local: LocalBus) -> None:
    local.connect().topic("cut", **SETTINGS)
    kill_one(agent, local, "x", **SETTINGS)
    agent.until_figure(2, "agent_topics")
    os.truncate(local.directory / "cut.topic", 0)
    assert ("hawser_topic_published_total", "cut") not in agent.figures()
    kill_one(agent, local, "cut-not", **SETTINGS)
    os.close(os.open(local.directory / "cut.topic", os.O_RDWR))
    until(lambda: any("'cut' is left out" in text for text in agent.messages()), "it is told")
    assert agent.figure("agent_topics") == 2

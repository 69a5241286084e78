"""`hawser ps` and `hawser reap`: the living, the dead, and what they left."""

import os
from pathlib import Path

import hawser
from hawser.testing import LocalBus
from tests.support.boots import make_topic_of_earlier_boot
from tests.support.children import Channel, sleep_for_ever, victim
from tests.support.command import Command


def test_ps_of_nobody(command: Command) -> None:
    assert command.json("ps") == []
    assert "no participants" in command.run("ps").stderr


def test_ps_shows_the_living(command: Command, local: LocalBus) -> None:
    topic = local.connect("tester").topic("t")
    subscription = topic.subscribe(reliable=True)
    for _ in range(3):
        topic.publish(b"x")
    sample = subscription.take(1)
    assert sample is not None
    publisher, subscriber = command.json("ps")
    assert (publisher["kind"], publisher["count"], publisher["lag"]) == ("publisher", 3, None)
    assert publisher["pid"] == os.getpid()
    assert (subscriber["kind"], subscriber["count"], subscriber["lag"]) == ("subscriber", 1, 2)
    assert (subscriber["held"], subscriber["alive"], subscriber["reliable"]) == (1, True, "reliable")
    shown = command.run("ps").stdout
    assert shown.count("tester") == 2
    assert "alive" in shown


def _hold_everything(url: str, channel: Channel) -> None:
    topic = hawser.connect(url, name="victim").topic("t")
    subscription = topic.subscribe()
    topic.publish(b"x")
    held = subscription.take(1)
    loan = topic.loan(10)
    channel.tell("ready")
    sleep_for_ever()
    del held, loan


def test_reap_recovers_the_dead(command: Command, local: LocalBus) -> None:
    assert command.json("reap") == {"recovered": [], "removed": []}
    with victim(lambda channel: _hold_everything(local.url, channel)) as child:
        assert child.hear() == "ready"
        child.kill()
        dead = command.json("ps")
        assert [each["alive"] for each in dead] == [False, False]
        assert "dead" in command.run("topic", "list").stdout
        recovered = command.json("reap")["recovered"]
    assert {each["kind"]: (each["slots"], each["references"]) for each in recovered} == {
        "publisher": (1, 0),
        "subscriber": (0, 1),
    }
    assert command.json("ps") == []
    info = command.json("topic", "info", "t")
    assert (info["slots_lent"], info["slots_referenced"], info["slots_leaked"]) == (0, 0, 0)
    assert "nothing to do" in command.run("reap").stderr


def _hold_a_message(url: str, channel: Channel) -> None:
    held = hawser.connect(url, name="victim").queue("jobs").get(timeout=10)
    channel.tell("ready")
    sleep_for_ever()
    del held


def test_reap_gives_the_messages_of_the_dead_back(command: Command, local: LocalBus) -> None:
    queue = local.connect("tester").queue("jobs")
    queue.put(b"x")
    with victim(lambda channel: _hold_a_message(local.url, channel)) as child:
        assert child.hear() == "ready"
        child.kill()
        shown = {(each["kind"], each["name"]): each["alive"] for each in command.json("ps")}
        assert shown == {("producer", "tester"): True, ("consumer", "victim"): False}
        (recovered,) = command.json("reap")["recovered"]
    assert (recovered["topic"], recovered["kind"], recovered["claims"]) == ("jobs", "consumer", 1)
    assert (queue.info().ready, queue.info().claimed) == (1, 0)


def _leave_behind(url: str, channel: Channel) -> None:
    hawser.connect(url).topic("passing", ephemeral=True)
    channel.tell("ready")
    sleep_for_ever()


def test_reap_removes_what_nobody_can_use(command: Command, local: LocalBus, tmp_path: Path) -> None:
    with victim(lambda channel: _leave_behind(local.url, channel)) as child:
        assert child.hear() == "ready"
        child.kill()
    make_topic_of_earlier_boot(local.url, "old", tmp_path)
    (local.directory / "stranger").write_bytes(b"")
    states = {each.file: each.state for each in local.connect().files()}
    assert states == {
        ".lock": "lock",
        "old.topic": "earlier boot",
        "passing.topic": "leftover",
        "stranger": "foreign",
    }
    done = command.run("reap", "-o", "json")
    assert '"removed":[{"file":"old.topic","topic":"old","was":"earlier boot"},' in done.stdout
    assert '{"file":"passing.topic","topic":"passing","was":"leftover"}' in done.stdout
    assert "stranger is not removed (foreign)" in done.stderr
    assert sorted(os.listdir(local.directory)) == [".lock", "stranger"]

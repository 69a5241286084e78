"""Totals never go back: whoever dies or is killed, the agent too, and whoever recovers them."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hawser
from hawser.testing import LocalBus
from tests.agent.support import Agent
from tests.crash.survivors import Victims
from tests.crash.victims import SETTINGS, TOPIC
from tests.support.children import Channel, sleep_for_ever, victim
from tests.support.processes import until

Record = Callable[[str, object], None]

LIVES = 120
AGENT_LIVES = 12


class Totals:
    """Every total that was ever seen, from whichever agent; none may be smaller the next time."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, ...]] = Counter()
        self.looks = 0

    def look(self, agent: Agent) -> None:
        for name, value in agent.figures().items():
            if name[0].startswith("hawser_topic_") and name[0].endswith("_total"):
                assert value >= self.seen[name], f"{name} went back from {self.seen[name]} to {value}"
                self.seen[name] = int(value)
        self.looks += 1


def test_counts_of_the_dead_are_kept(agent: Agent, local: LocalBus) -> None:
    """Some leave in order, some are killed, and are recovered by the agent or by whoever comes before it."""
    bus = local.connect()
    settings: dict[str, Any] = {"slot_size": 64, "history": 0, "depth": 4}
    topic = bus.topic("x", **settings)
    totals, received, missed = Totals(), 0, 0

    def subscribe(channel: Channel) -> None:
        subscription = hawser.connect(local.url).topic("x").subscribe()
        channel.tell("subscribed")
        while channel.hear() == "take":
            while (sample := subscription.take(timeout=0)) is not None:
                sample.release()
            channel.tell(f"{subscription.received} {subscription.missed}")
        subscription.close()
        channel.tell("closed")
        sleep_for_ever()

    for life in range(12):
        with victim(subscribe) as child:
            child.hear()
            for burst in range(1, 4):
                for _ in range(3 * burst):
                    topic.publish(b"sample")
                child.tell("take")
                told = child.hear()
                totals.look(agent)
            own = [int(word) for word in told.split()]
            assert sum(own) == 18, "the subscriber missed nothing that it does not know of"
            received, missed = received + own[0], missed + own[1]
            if life % 3 == 0:
                child.tell("close")
                child.hear()
        if life % 3 == 1:
            bus.recover()
        totals.look(agent)
        assert totals.seen["hawser_topic_received_total", "x"] == received
        assert totals.seen["hawser_topic_missed_total", "x"] == missed
    assert totals.seen["hawser_topic_published_total", "x"] == topic.info().head == 12 * 18
    agent.until_figure(8, "topic_recoveries_total", "x", "subscriber")
    totals.look(agent)
    assert totals.seen["hawser_topic_recoveries_total", "x", "subscriber"] == 8


def test_agents_killed_in_a_storm(local: LocalBus, tmp_path: Path, record_property: Record) -> None:
    """Participants of every kind and agents are killed at random; the totals are those of one long life."""
    topic = local.connect().topic(TOPIC, **SETTINGS)  # type: ignore[call-overload]
    chance, totals, victims = random.Random(5), Totals(), Victims(local.url)
    agent = Agent(local, tmp_path)
    agent.start()
    numbers = iter(range(1, LIVES + 1))
    try:
        for _ in range(AGENT_LIVES):
            for number in [next(numbers) for _ in range(LIVES // AGENT_LIVES)]:
                process = victims.start(number)
                for _ in range(chance.randrange(12)):
                    totals.look(agent)
                victims.kill(process)
            # It has just heard of the last death, and may be anywhere in recovering it.
            agent.kill()
            agent.start()
            totals.look(agent)
        until(lambda: not any(_dead(agent)), "everybody is recovered")
        totals.look(agent)
    finally:
        victims.close()
        agent.kill()
    info = topic.info()
    assert info.participants == [] and info.slots_leaked == info.slots_lent == info.slots_referenced == 0
    assert totals.seen["hawser_topic_published_total", TOPIC] == info.head > 0
    deaths = [
        totals.seen["hawser_topic_recoveries_total", TOPIC, kind] for kind in ("publisher", "subscriber")
    ]
    assert LIVES / 4 < deaths[0] <= LIVES and deaths[1] <= LIVES
    record_property("lives", LIVES)
    record_property("agents", AGENT_LIVES + 1)
    record_property("looks", totals.looks)
    for name, value in totals.seen.items():
        record_property(" ".join(name), value)


def _dead(agent: Agent) -> list[float]:
    figures = agent.figures()
    return [figures["hawser_topic_participants", TOPIC, kind, "dead"] for kind in ("publisher", "subscriber")]

"""Queues of a domain with an agent: the messages of the dead are ready again, and nobody has to ask."""

import signal
import time
from collections.abc import Callable
from typing import Any

import hawser
from hawser.testing import LocalBus
from tests.agent.support import Agent
from tests.support.children import Channel, sleep_for_ever, victim

Record = Callable[[str, object], None]
SETTINGS: dict[str, Any] = {"slot_size": 64, "capacity": 8}


def hold(local: LocalBus, count: int = 1) -> Callable[[Channel], None]:
    """Get so many messages, say so, and wait for the end."""

    def work(channel: Channel) -> None:
        queue = hawser.connect(local.url, name="victim").queue("jobs")
        messages = queue.get_many(count, timeout=60)
        channel.tell(str(len(messages)))
        sleep_for_ever()

    return work


def test_the_messages_of_the_dead_are_ready_again(
    agent: Agent, local: LocalBus, record_property: Record
) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put_many([b"%d" % number for number in range(3)])
    seconds = []
    for death in range(1, 6):
        with victim(hold(local, 3)) as child:
            assert child.hear() == "3"
            assert (queue.info().ready, queue.info().claimed) == (0, 3)
            began = time.time()
            child.kill()
            agent.until_figure(death, "queue_recoveries_total", "jobs", "consumer")
            seconds.append(agent.last_recovery() - began)
        # Nobody else has looked: to ask for information recovers nobody.
        assert (queue.info().ready, queue.info().claimed) == (3, 0)
    figures = agent.figures()
    assert figures["hawser_queue_messages", "jobs", "ready"] == 3
    assert figures["hawser_queue_put_total", "jobs"] == 3
    assert figures["hawser_queue_delivered_total", "jobs"] == 15
    assert figures["hawser_queue_slots", "jobs", "leaked"] == 0
    messages = queue.get_many(9, 0)
    assert [(int(bytes(each)), each.delivery_count) for each in messages] == [(0, 6), (1, 6), (2, 6)]
    record_property("milliseconds from kill to ready again", [round(each * 1000, 1) for each in seconds])


def test_a_stopped_consumer_keeps_its_message(agent: Agent, local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put_many([b"1", b"2"])
    with victim(hold(local)) as stopped:
        stopped.hear()
        stopped.signal(signal.SIGSTOP)
        with victim(hold(local)) as child:
            child.hear()
        agent.until_figure(1, "queue_recoveries_total", "jobs", "consumer")
        assert (queue.info().ready, queue.info().claimed) == (1, 1)
        assert agent.figure("queue_participants", "jobs", "consumer", "alive") == 1


def test_a_waiting_consumer_gets_it_from_the_agent(agent: Agent, local: LocalBus) -> None:
    queue = local.connect().queue("jobs", **SETTINGS)
    queue.put(b"1")
    with victim(hold(local)) as child:
        child.hear()
        child.kill()
        message = queue.get(timeout=60)
        assert message is not None
        assert (bytes(message), message.redelivered) == (b"1", True)

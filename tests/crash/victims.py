"""Processes to be killed: each takes part in a topic in every way until it is.

Run as `python -m tests.crash.victims URL`. A line with a number on standard input starts a victim of that
number; its pid is the answer. Victims are forked from one process that has Hawser imported and nothing open.
"""

import itertools
import os
import random
import struct
import sys
from typing import Any

import hawser

CONTENT = struct.Struct("<QQ")
TOPIC = "victims"
SETTINGS = {
    "slot_size": 64,
    "history": 8,
    "max_publishers": 4,
    "max_subscribers": 8,
    "max_held": 3,
    "max_loans": 2,
}


def content(victim: int, number: int) -> bytes:
    """What the sample `number` of a victim says."""
    return CONTENT.pack(victim, number) * 2


def publish(topic: "hawser.Topic[Any]", victim: int, numbers: "itertools.count[int]", way: int) -> None:
    """One or a few samples, by copy, by loan or in a batch; no number is left out."""
    if way == 0:
        topic.publish(content(victim, next(numbers)))
    elif way == 1:
        with topic.loan(2 * CONTENT.size) as view:
            view[:] = content(victim, next(numbers))
    else:
        topic.publish_many([content(victim, next(numbers)) for _ in range(5)])


def live(url: str, victim: int) -> None:
    """Publish, subscribe, hold and leave for ever."""
    chance = random.Random(victim)
    bus = hawser.connect(url, name=f"victim-{victim % 3}")
    topic = bus.topic(TOPIC)
    numbers = itertools.count(1)
    while True:
        resume = chance.random() < 0.3
        with topic.subscribe(history=4, resume=resume, reliable=chance.random() < 0.3) as subscription:
            held: list[hawser.Sample] = []
            for _ in range(chance.randrange(1, 6)):
                publish(topic, victim, numbers, chance.randrange(3))
                while (sample := subscription.take(timeout=0)) is not None:
                    held.append(sample)
                    if len(held) > 2:
                        held.pop(0).release()
            for sample in held:
                sample.release()


def main() -> None:
    url = sys.argv[1]
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            os.close(0)
            live(url, int(line))
        print(process, flush=True)
        os.waitpid(process, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main()

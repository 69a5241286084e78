"""Who takes part in a storm over topics, and how it ends."""

from dataclasses import replace
from typing import Any

import hawser

from .judge import Life, Verdict, judge
from .workers import SETTINGS, Job, Phase

_TOPICS = ("storm/one", "storm/two")
_SUBSCRIBERS: tuple[tuple[str, dict[str, Any], float, bool], ...] = (
    ("witness", {"reliable": True}, 0.0, False),
    ("plain", {}, 0.0, True),
    ("late", {"history": 5}, 0.01, True),
    ("slow", {"history": 8}, 0.05, True),
    ("reliable", {"reliable": True}, 0.002, True),
    ("durable", {"reliable": "durable"}, 0.002, True),
    ("durable-two", {"reliable": "durable", "resume": True}, 0.0, True),
    ("resume", {"resume": True}, 0.02, True),
    ("resume-reliable", {"resume": True, "reliable": True}, 0.002, True),
)


class TopicScene:
    """Publishers and subscribers of every kind; the witness of each topic comes first and is never killed."""

    names = _TOPICS
    pause_seconds = 0.04  # between two kills, at the most
    endings = ((Phase.NO_MORE_MESSAGES, ("publish",)), (Phase.DRAIN, ("subscribe", "reap")))

    def jobs(self, job: Job) -> list[Job]:
        jobs = []
        for topic in _TOPICS:
            job = replace(job, topic=topic)
            for name, options, pause_seconds, killable in _SUBSCRIBERS:
                subscriber = replace(job, role="subscribe", name=name, options=options)
                jobs.append(replace(subscriber, pause_seconds=pause_seconds, killable=killable))
            for number in range(3):
                publisher = replace(job, role="publish", name=f"publisher-{number}")
                jobs.append(replace(publisher, pause_seconds=0.003 * number))
        return jobs

    def judge(self, bus: hawser.Bus, name: str, lives: list[Life]) -> Verdict:
        return judge(name, lives, final_state(bus, name), SETTINGS)


def final_state(bus: hawser.Bus, topic: str) -> dict[str, int]:
    info = bus.topic(topic).info()
    numbers = {name: getattr(info, name) for name in info.__struct_fields__ if name != "participants"}
    return {**numbers, "participants": len(info.participants)}

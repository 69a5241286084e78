"""Who takes part in a storm over queues, and how it ends."""

from dataclasses import replace
from typing import Any

import hawser

from .judge import Life
from .queue_judge import QueueVerdict, judge_queue
from .queue_workers import MAX_HELD
from .workers import Job, Phase

_SETTINGS: dict[str, Any] = {
    "slot_size": 256,
    "capacity": 32,
    "max_producers": 6,
    "max_consumers": 16,
    "max_held": MAX_HELD,
}
_QUEUES: dict[str, dict[str, Any]] = {
    "storm/plain": {},
    "storm/poison": {"max_deliveries": 3},
    "storm/leased": {"lease": 0.03, "max_deliveries": 30},
}
_PAUSES_SECONDS = (0.0, 0.0, 0.002, 0.01, 0.06)


class QueueScene:
    """Producers and consumers of queues without bounds, with poison in them, and with leases; and those who
    get their dead letters."""

    names = tuple(_QUEUES)
    pause_seconds = 0.015  # between two kills, at the most
    endings = (
        (Phase.NO_MORE_MESSAGES, ("put",)),
        (Phase.DRAIN, ("consume", "reap")),
        (Phase.DRAIN_LETTERS, ("undertake",)),
    )

    def jobs(self, job: Job) -> list[Job]:
        jobs = []
        for queue, more in _QUEUES.items():
            settings = {**_SETTINGS, **more}
            job = replace(job, topic=queue, options=settings)
            for number in range(3):
                producer = replace(job, role="put", name=f"producer-{number}")
                jobs.append(replace(producer, pause_seconds=0.003 * (number + 1)))
            for number, pause_seconds in enumerate(_PAUSES_SECONDS):
                consumer = replace(job, role="consume", name=f"consumer-{number}")
                jobs.append(replace(consumer, pause_seconds=pause_seconds))
            options = {"of": queue, "settings": settings}
            jobs.append(replace(job, role="undertake", name="undertaker", options=options))
        return jobs

    def judge(self, bus: hawser.Bus, name: str, lives: list[Life]) -> QueueVerdict:
        queue = bus.queue(name)
        left = {each.name: what_is_left(each) for each in (queue, queue.dead_letters())}
        return judge_queue(name, lives, left, _QUEUES[name].get("max_deliveries"), "lease" in _QUEUES[name])


def what_is_left(queue: "hawser.Queue[Any]") -> dict[str, int]:
    info = queue.info()
    names = ("ready", "claimed", "slots_leaked", "slots_lent", "slots_referenced")
    return {name: getattr(info, name) for name in names}

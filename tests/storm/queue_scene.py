"""Who takes part in a storm over queues, and how it ends."""

from dataclasses import replace
from typing import Any, ClassVar

import hawser

from .judge import Life
from .queue_judge import QueueVerdict, judge_queue
from .queue_workers import MAX_HELD
from .workers import Job, Phase

ITERATING = ("iterate", "iterate values", "iterate in a loop")
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

    queues: ClassVar = _QUEUES
    pause_seconds = 0.015  # between two kills, at the most
    endings = (
        (Phase.NO_MORE_MESSAGES, ("put", *ITERATING)),
        (Phase.DRAIN, ("consume", "reap")),
        (Phase.DRAIN_LETTERS, ("undertake",)),
    )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.queues)

    def jobs(self, job: Job) -> list[Job]:
        jobs = []
        for queue, more in self.queues.items():
            settings = {**_SETTINGS, **more}
            jobs += self.crew(replace(job, topic=queue, options=settings))
            undertaker = replace(
                job, topic=queue, role="undertake", options={"of": queue, "settings": settings}
            )
            jobs.append(replace(undertaker, name="undertaker"))
        return jobs

    def crew(self, job: Job) -> list[Job]:
        """Who works at one queue."""
        return [
            *(replace(job, role="put", name=f"producer-{n}", pause_seconds=0.003 * n) for n in range(1, 4)),
            *(
                replace(job, role="consume", name=f"consumer-{n}", pause_seconds=pause_seconds)
                for n, pause_seconds in enumerate(_PAUSES_SECONDS)
            ),
            *(replace(job, role=role, name=role, pause_seconds=0.01) for role in ITERATING),
        ]

    def judge(self, bus: hawser.Bus, name: str, lives: list[Life]) -> QueueVerdict:
        queue = bus.queue(name)
        left = {each.name: what_is_left(each) for each in (queue, queue.dead_letters())}
        settings = self.queues[name]
        return judge_queue(name, lives, left, settings.get("max_deliveries"), "lease" in settings)


class CrowdScene(QueueScene):
    """Dozens of producers and dozens of consumers at one queue, killed as fast as they come back."""

    queues: ClassVar = {
        "storm/crowd": {"capacity": 64, "max_producers": 48, "max_consumers": 64, "max_deliveries": 6}
    }
    pause_seconds = 0.005

    def crew(self, job: Job) -> list[Job]:
        roles = ("put",) * 24 + ("consume",) * 12 + ITERATING * 6
        return [
            replace(job, role=role, name=f"{role}-{n}", pause_seconds=0.005 * (n % 12))
            for n, role in enumerate(roles)
        ]


def what_is_left(queue: "hawser.Queue[Any]") -> dict[str, int]:
    info = queue.info()
    names = ("ready", "claimed", "slots_leaked", "slots_lent", "slots_referenced")
    return {name: getattr(info, name) for name in names}

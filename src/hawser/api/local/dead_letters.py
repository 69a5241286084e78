"""Dead letters on one host: a queue of their own, created with the first dead letter.

A message is *dying* once it was rejected, or its last allowed delivery has ended. It is never delivered
again. Any participant that notices it moves it to the dead-letter queue, exactly once even if movers are
killed. If the dead-letter queue is full, or was created for smaller messages, that is logged; the message
keeps its place, and the next participant that notices it tries again.
"""

import time
from typing import Any, Final, Protocol

from hawser.errors import Closed, HawserError, NotFound, UsageError
from hawser.limits import DEAD_LETTER_SUFFIX, QUEUE_SETTING_BOUNDS
from hawser.memory import Consumer, Domain, Publisher, Region
from hawser.memory.names import check_topic_name
from hawser.memory.settings import RegionSettings
from hawser.record.metadata import dead_letter_origin, with_origin, without_origin
from hawser.record.names import check_is_another

__all__ = ["DeadLetters", "check_dead_letter"]

# The header of a dead letter that says where it comes from.
_HEADER_BYTES: Final = 1024
# The pause after a failed attempt.
_PAUSE_SECONDS: Final = 0.1
_ALL: Final = (1 << 64) - 1


class LazyHandle(Protocol):
    """What is needed of a queue that was opened."""

    _region: Region


class Owner(Protocol):
    """What is needed of the bus."""

    name: str
    _domain: Domain

    def _queue(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> LazyHandle: ...


class DeadLetters:
    """The destination of one queue's dead letters; `stay` if the queue is its own."""

    def __init__(self, bus: Owner, region: Region) -> None:
        settings = region.settings()
        self.name = _name_of_dead_letters(region.name, settings)
        self.stay = self.name == region.name
        self._own = not settings["dead_letter"]
        self._bus = bus
        self._source = region
        self._settings = _settings_of_dead_letters(self.name, settings)
        self._problem = ""
        self._paused_until = 0.0

    def bury(self, consumer: Consumer) -> None:
        """Move the dying messages, if that can be done now."""
        if time.monotonic() < self._paused_until:
            return
        try:
            self._bury(consumer)
            self._problem = ""
        except Closed:
            # The bus is closed, or the dead-letter queue was just deleted.
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
        except HawserError as error:
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            if str(error) != self._problem:
                import logging

                logger = logging.getLogger("hawser.queue")
                logger.warning("dead letters of queue %r stay in it: %s", self._source.name, error)
            self._problem = str(error)

    def _bury(self, consumer: Consumer) -> None:
        target = self.open()
        self._unpin_deleted(target)
        # Joined only while it moves: an idle producer must not show up among the participants.
        publisher = target.publisher(self._bus.name)
        try:
            consumer.bury(publisher, self._as_letter)
        finally:
            publisher.close()

    def retry(self, publisher: Publisher, count: int | None) -> int:
        """Move dead letters back to this queue while there is room; returns how many."""
        if self.stay:
            raise UsageError(f"{self.name!r} holds dead letters itself; retry them at the queue they are of")
        try:
            consumer = self._opened().consumer(self._bus.name)
        except NotFound:
            return 0
        try:
            self._unpin_deleted(self._source)
            return consumer.retry(publisher, self._as_message, _ALL if count is None else count)
        finally:
            consumer.close()

    def count(self) -> int:
        """The number of dead letters here; those in a queue that `dead_letter` names are counted there."""
        region = self._bus._domain.watch(self.name) if self._own else None
        if region is None or region.kind != "queue":
            return 0
        state = region.queue_state()
        return int(state["ready"] + state["claimed"] + state["moving"])

    def open(self) -> Region:
        """The dead-letter queue, which stays open in this bus; created if there is none."""
        made = self._bus._domain.open_or_create(self.name, {"kind": "queue"}, self._settings)
        try:
            return self._opened()
        finally:
            # Not before: an ephemeral queue would be removed.
            made.close()

    def _opened(self) -> Region:
        """The dead-letter queue; NotFound if there is none."""
        return self._bus._queue(self.name, None, False, {})._region

    def _unpin_deleted(self, target: Region) -> None:
        """Free the slots that dead movers left pinned for messages of queues that were deleted since."""
        pinning = target.pinning()
        # Read the pinning queues first and the existing ones second: a queue exists before it pins.
        existing = self._bus._domain.numbers() if pinning else None
        if existing is not None:
            for number in pinning - existing:
                target.unpin(number)

    def _as_letter(self, metadata: bytes, offset: int, deliveries: int) -> bytes:
        return with_origin(metadata, self._source.name, offset, deliveries)

    def _as_message(self, metadata: bytes, offset: int, deliveries: int) -> bytes | None:
        """None for a dead letter of another queue. One without an origin belongs to this queue only in its
        own dead-letter queue."""
        origin = dead_letter_origin(metadata)
        ours = self._own if origin is None else origin == self._source.name
        return without_origin(metadata) if ours else None


def check_dead_letter(domain: Domain, name: str, given: RegionSettings, create: bool) -> None:
    """UsageError if the dead letters of such a queue cannot go to their destination."""
    target = _name_of_dead_letters(name, given)
    check_is_another(name, target)
    if given.get("dead_letter"):
        if domain.kind_of(target) == "topic":
            raise UsageError(f"dead_letter={target!r} is a topic; dead letters need a queue")
    elif create and domain.kind_of(name) is None:
        try:
            check_topic_name(target)
        except UsageError as error:
            raise UsageError(
                f"the dead letters of queue {name!r} would go to {target!r}: {error}; choose a shorter name, "
                "or give a dead_letter"
            ) from None


def _name_of_dead_letters(queue: str, settings: RegionSettings) -> str:
    return str(settings.get("dead_letter", "")) or queue + DEAD_LETTER_SUFFIX


def _settings_of_dead_letters(name: str, queue: RegionSettings) -> RegionSettings:
    """The settings of the dead-letter queue: the queue's, with room for a mover in each consumer."""
    numbers = {key: int(value) for key, value in queue.items() if isinstance(value, int)}
    bounds = QUEUE_SETTING_BOUNDS
    return {
        "kind": "queue",
        "slot_size": min(numbers["slot_size"] + _HEADER_BYTES, bounds["slot_size"].highest),
        "depth": numbers["depth"],
        "max_publishers": numbers["max_subscribers"],
        "max_subscribers": min(numbers["max_subscribers"], bounds["max_consumers"].default),
        "max_held": min(numbers["max_held"], bounds["max_held"].default),
        "ephemeral": numbers["ephemeral"],
        "group": numbers["group"],
        "schema": queue["schema"],
        "dead_letter": name,
    }

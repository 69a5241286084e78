"""The bus on one host: a process's connection to a domain."""

import os
import threading
from typing import Any

import msgspec

from hawser.api.bus import Bus, codec_of
from hawser.api.info import DomainFile, Participant, Recovered
from hawser.api.local.dead_letters import check_dead_letter
from hawser.api.local.queue import LocalQueue
from hawser.api.local.topic import LocalTopic, participants_of
from hawser.errors import UsageError
from hawser.memory import Domain, Region
from hawser.memory.names import check_topic_name
from hawser.memory.settings import RegionSettings, Request, check_same, group_of_mode, queue_request, request
from hawser.memory.survey import survey
from hawser.memory.trace_ring import switch

__all__ = ["LocalBus"]


class LocalBus(Bus):
    """A connection to a domain."""

    def __init__(self, url: str = "shm://", *, name: str | None = None, **options: Any) -> None:
        mode = options.pop("mode", "user")
        if options:
            raise UsageError(f"connect has no option {', '.join(map(repr, options))}; it has name and mode")
        super().__init__(name)
        self._domain = Domain.of_url(url, group=bool(group_of_mode(mode)))
        self._lock = threading.RLock()
        self._regions: dict[str, Region] = {}
        # A name is a topic's or a queue's: they share this.
        self._users: dict[tuple[str, Any], LocalTopic[Any] | LocalQueue[Any]] = {}
        if self.named:
            self.recover()
        self._opened()

    @property
    def url(self) -> str:
        return self._domain.url

    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> LocalTopic[Any]:
        check_topic_name(name)
        self._require_open()
        codec = codec_of(schema)
        asked = request(settings, None if codec is None else codec.fingerprint)
        with self._lock:
            region, known = self._look_up(name, schema, create, asked)
            if known is None:
                known = self._users[name, schema] = LocalTopic(self, region, codec, asked.unused)
            assert isinstance(known, LocalTopic)
            return known

    def _queue(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> LocalQueue[Any]:
        check_topic_name(name)
        self._require_open()
        codec = codec_of(schema)
        asked = queue_request(settings, None if codec is None else codec.fingerprint)
        check_dead_letter(self._domain, name, asked.given, create)
        with self._lock:
            region, known = self._look_up(name, schema, create, asked)
            if known is None:
                known = self._users[name, schema] = LocalQueue(self, region, schema, codec, asked.unused)
            assert isinstance(known, LocalQueue)
            return known

    def topics(self) -> list[str]:
        self._require_open()
        return self._domain.topics()

    def queues(self) -> list[str]:
        self._require_open()
        return self._domain.queues()

    def files(self) -> list[DomainFile]:
        self._require_open()
        return [msgspec.convert(found, DomainFile) for found in survey(self._domain.directory)]

    def participants(self) -> list[Participant]:
        self._require_open()
        return self._domain.gather(participants_of)

    def recover(self) -> list[Recovered]:
        self._require_open()
        return self._domain.gather(_recover)

    def close(self) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            # Closing a queue may open another one, for the dead letters among the messages that it releases;
            # and one that another thread is closing is removed only once that thread has the lock.
            while self._users:
                self._users.pop(next(iter(self._users))).close()
            self._closed = True

    def release(self, user: LocalTopic[Any] | LocalQueue[Any]) -> None:
        """Called by a topic or queue that was closed."""
        with self._lock:
            self._users = {key: each for key, each in self._users.items() if each is not user}
            if not any(name == user.name for name, _ in self._users):
                region = self._regions.pop(user.name, None)
                if region is not None:
                    region.close()

    def _look_up(
        self, name: str, schema: Any, create: bool, asked: Request
    ) -> tuple[Region, LocalTopic[Any] | LocalQueue[Any] | None]:
        """The region of that name, and this bus's object for it, if any."""
        self._require_open()
        region = self._region(name, asked.given, create)
        if asked.trace is not None:
            switch(self._domain, region, asked.trace)
        known = self._users.get((name, schema))
        if known is not None:
            known._unused.update(asked.unused)
        return region, known

    def _region(self, name: str, given: RegionSettings, create: bool) -> Region:
        region = self._regions.get(name)
        if region is not None and region.closed:
            self._drop(name)
            region = None
        if region is None:
            open_region = self._domain.open_or_create if create else self._domain.open
            region = self._regions[name] = open_region(name, given)
        else:
            check_same(name, given, region.settings())
        return region

    def _drop(self, name: str) -> None:
        """Close a deleted topic or queue, so that it can be created again."""
        for user in [each for (key, _), each in self._users.items() if key == name]:
            user.close()


def _recover(region: Region) -> list[Recovered]:
    return [msgspec.convert({**each, "topic": region.name}, Recovered) for each in region.recover()]

"""The bus on one host: one process's way into a domain."""

import os
import threading
from typing import Any

import msgspec

from hawser.api.bus import Bus, codec_of
from hawser.api.info import DomainFile, Participant, Recovered
from hawser.api.local.topic import LocalTopic, participants_of
from hawser.errors import UsageError
from hawser.memory import Domain, Region
from hawser.memory.names import check_topic_name
from hawser.memory.settings import check_same, group_of_mode, request
from hawser.memory.survey import survey

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
        self._topics: dict[tuple[str, Any], LocalTopic[Any]] = {}
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
        given, unused = request(settings, None if codec is None else codec.fingerprint)
        with self._lock:
            self._require_open()
            region = self._region(name, given, create)
            existing = self._topics.get((name, schema))
            if existing is not None:
                existing._unused.update(unused)
                return existing
            topic: LocalTopic[Any] = LocalTopic(self, region, codec, unused)
            self._topics[name, schema] = topic
            return topic

    def topics(self) -> list[str]:
        self._require_open()
        return self._domain.topics()

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
            for topic in list(self._topics.values()):
                topic.close()
            self._closed = True

    def release_topic(self, topic: LocalTopic[Any]) -> None:
        """Called by a topic that was closed."""
        with self._lock:
            self._topics = {key: each for key, each in self._topics.items() if each is not topic}
            if not any(name == topic.name for name, _ in self._topics):
                region = self._regions.pop(topic.name, None)
                if region is not None:
                    region.close()

    def _region(self, name: str, given: dict[str, int | str], create: bool) -> Region:
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
        """Let go of a topic that somebody deleted, so that it can be made anew."""
        for topic in [each for (key, _), each in self._topics.items() if key == name]:
            topic.close()


def _recover(region: Region) -> list[Recovered]:
    return [msgspec.convert({**each, "topic": region.name}, Recovered) for each in region.recover()]

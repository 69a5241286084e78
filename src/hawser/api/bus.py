"""The bus: one process's way into a domain."""

import atexit
import os
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, overload

import msgspec

from hawser.api.info import DomainFile, Participant, Recovered
from hawser.api.topic import Topic, participants_of
from hawser.errors import Closed, UsageError
from hawser.memory import Domain, Region
from hawser.memory.names import check_bus_name, check_topic_name
from hawser.memory.settings import TopicOptions, check_same, group_of_mode, request
from hawser.memory.survey import survey

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from hawser.record.schema import Codec

__all__ = ["Bus", "connect"]

T = TypeVar("T")

_CLUSTER_SCHEME: Final = "hawser://"

_open_buses: "weakref.WeakSet[Bus]" = weakref.WeakSet()


def connect(url: str = "shm://", *, name: str | None = None, **options: Any) -> "Bus":
    """Connect to a bus: `shm://` this user's own domain on this host, `shm:///path` that directory.

    `name` is this application's identity: when a run of it died, the next one with the same name
    recovers what that left. Without one an anonymous name is made. Option `mode`: "user", or "group" to
    share the domain with the directory's group."""
    return Bus(url, name=name, **options)


class Bus:
    """A connection to a domain. Made by `connect`; a context manager; threads may share it."""

    def __init__(self, url: str = "shm://", *, name: str | None = None, **options: Any) -> None:
        if str(url).startswith(_CLUSTER_SCHEME):
            raise UsageError(
                f"{url!r} names a cluster, and clusters are not part of this version; use shm://"
            )
        mode = options.pop("mode", "user")
        if options:
            raise UsageError(f"connect has no option {', '.join(map(repr, options))}; it has name and mode")
        self.named = name is not None
        self.name = check_bus_name(name) if name is not None else _anonymous_name()
        self._domain = Domain.of_url(url, group=bool(group_of_mode(mode)))
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._closed = False
        self._regions: dict[str, Region] = {}
        self._topics: dict[tuple[str, Any], Topic[Any]] = {}
        if self.named:
            self.recover()
        _open_buses.add(self)

    @property
    def url(self) -> str:
        """The URL another process connects to for the same domain."""
        return self._domain.url

    @overload
    def topic(
        self, name: str, *, create: bool = True, **settings: Unpack[TopicOptions]
    ) -> "Topic[Buffer]": ...
    @overload
    def topic(
        self, name: str, *, schema: type[T], create: bool = True, **settings: Unpack[TopicOptions]
    ) -> Topic[T]: ...
    @overload
    def topic(
        self, name: str, *, schema: Any, create: bool = True, **settings: Unpack[TopicOptions]
    ) -> Topic[Any]: ...
    def topic(self, name: str, *, schema: Any = None, create: bool = True, **settings: Any) -> Topic[Any]:
        """Open the topic, or create it with these settings; NotFound instead unless `create`.

        A setting that contradicts the existing topic raises SettingsMismatch and changes nothing; those
        not given are taken as they are there. Asked twice for the same topic, a bus gives the same object.
        """
        check_topic_name(name)
        self._require_open()
        codec = None if schema is None else _codec_of(schema)
        given, unused = request(settings, None if codec is None else codec.fingerprint)
        with self._lock:
            self._require_open()
            region = self._region(name, given, create)
            existing = self._topics.get((name, schema))
            if existing is not None:
                existing._unused.update(unused)
                return existing
            topic: Topic[Any] = Topic(self, region, codec, unused)
            self._topics[name, schema] = topic
            return topic

    def topics(self) -> list[str]:
        """Names of all topics of the domain, sorted."""
        self._require_open()
        return self._domain.topics()

    def files(self) -> list[DomainFile]:
        """Every file of the domain and what it is, sorted; nothing is opened for use, nothing changed."""
        self._require_open()
        return [msgspec.convert(found, DomainFile) for found in survey(self._domain.directory)]

    def participants(self) -> list[Participant]:
        """Publishers and subscribers of all topics of the domain, the dead not yet recovered included."""
        self._require_open()
        return self._domain.gather(participants_of)

    def recover(self) -> list[Recovered]:
        """Return to every topic what dead participants had of it; what was recovered."""
        self._require_open()
        return self._domain.gather(_recover)

    def close(self) -> None:
        """Leave every topic opened here. Samples still held stay valid; topics stay. In a forked child
        it does nothing: the connection is the parent's."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._closed:
                return
            for topic in list(self._topics.values()):
                topic.close()
            self._closed = True
        _open_buses.discard(self)

    def release_topic(self, topic: Topic[Any]) -> None:
        """Called by a topic that was closed."""
        with self._lock:
            self._topics = {key: each for key, each in self._topics.items() if each is not topic}
            if not any(name == topic.name for name, _ in self._topics):
                region = self._regions.pop(topic.name, None)
                if region is not None:
                    region.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Bus {self.name!r} at {self.url}>"

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

    def _require_open(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this bus was opened before a fork; connect again in the child")
        if self._closed:
            raise Closed("this bus is closed; connect again")


def _recover(region: Region) -> list[Recovered]:
    return [msgspec.convert({**each, "topic": region.name}, Recovered) for each in region.recover()]


def _anonymous_name() -> str:
    return f"anonymous-{os.getpid()}-{os.urandom(4).hex()}"


def _codec_of(schema: Any) -> "Codec[Any]":
    from hawser.record.schema import codec_of

    return codec_of(schema)


@atexit.register
def _close_buses() -> None:
    for bus in list(_open_buses):
        bus.close()

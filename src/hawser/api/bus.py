"""The bus: a process's connection to topics and queues, on one host or on a cluster."""

import atexit
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, overload

from hawser.api.info import DomainFile, Participant, Recovered
from hawser.api.queue import Queue
from hawser.api.topic import Topic
from hawser.api.transaction import Transaction, no_transactions
from hawser.errors import Closed, UsageError
from hawser.memory.names import check_bus_name
from hawser.memory.settings import QueueOptions, TopicOptions

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from hawser.api.xa import XA
    from hawser.record.schema import Codec

__all__ = ["Bus", "anonymous_name", "codec_of", "connect", "is_cluster"]

T = TypeVar("T")

CLUSTER_SCHEME: Final = "hawser://"

# A fork waits for it: a child may not have a type that another thread has described in part.
_describing = threading.RLock()
os.register_at_fork(
    before=_describing.acquire, after_in_parent=_describing.release, after_in_child=_describing.release
)

_open_buses: "weakref.WeakSet[Bus]" = weakref.WeakSet()


def connect(url: str = "shm://", *, name: str | None = None, **options: Any) -> "Bus":
    """Connect to a bus: `shm://` this user's own domain on this host, `shm:///path` that directory,
    `hawser://host:port,host:port` a cluster, of which any node will do.

    `name` is this application's identity: after a crash, its next run under the same name recovers what
    the crashed one left. The default is an anonymous name. Options: on one host `mode`: "user", or "group"
    to share the domain with the directory's group; on a cluster those of
    `hawser.cluster.client.settings.ClientSettings`, above all `timeout`, in seconds."""
    if is_cluster(url):
        from hawser.api.cluster.bus import ClusterBus

        return ClusterBus(url, name=name, **options)
    from hawser.api.local.bus import LocalBus

    return LocalBus(url, name=name, **options)


class Bus(ABC):
    """A connection to a domain or a cluster. Made by `connect`; a context manager; threads may share it."""

    def __init__(self, name: str | None) -> None:
        self.named = name is not None
        self.name = check_bus_name(name) if name is not None else anonymous_name()
        self._process = os.getpid()
        self._closed = False

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL another process connects to for the same domain or cluster."""

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
        `trace` is a switch, which is set if it is given.
        """
        return self._topic(name, schema, create, settings)

    @abstractmethod
    def _topic(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> Topic[Any]: ...

    @abstractmethod
    def topics(self) -> list[str]:
        """Names of all topics, sorted."""

    @abstractmethod
    def files(self) -> list[DomainFile]:
        """Every file of the domain and what it is, sorted; nothing is opened for use, nothing changed. A
        cluster has none here."""

    @abstractmethod
    def participants(self) -> list[Participant]:
        """The participants of the topics and queues of the domain, including dead ones that are not yet
        recovered. On a cluster, the members of its groups and the consumers of its queues; Unavailable if a
        partition or queue does not answer."""

    @abstractmethod
    def recover(self) -> list[Recovered]:
        """Return to every topic and queue what dead participants held of it; a report of that. On a cluster
        the report is empty: the messages that a dead client held return by themselves."""

    @overload
    def queue(
        self, name: str, *, create: bool = True, **settings: Unpack[QueueOptions]
    ) -> "Queue[Buffer]": ...
    @overload
    def queue(
        self, name: str, *, schema: type[T], create: bool = True, **settings: Unpack[QueueOptions]
    ) -> Queue[T]: ...
    @overload
    def queue(
        self, name: str, *, schema: Any, create: bool = True, **settings: Unpack[QueueOptions]
    ) -> Queue[Any]: ...
    def queue(self, name: str, *, schema: Any = None, create: bool = True, **settings: Any) -> Queue[Any]:
        """Open the queue, or create it with these settings; as `topic`. A name is a topic's or a queue's: a
        UsageError if it is a topic."""
        return self._queue(name, schema, create, settings)

    @abstractmethod
    def _queue(self, name: str, schema: Any, create: bool, settings: dict[str, Any]) -> Queue[Any]: ...

    @abstractmethod
    def queues(self) -> list[str]:
        """Names of all queues, sorted."""

    def transaction(self, timeout: float | None = None) -> Transaction:
        """Begin a transaction over topics and queues, on a cluster. It is rolled back if it is not committed
        within `timeout` seconds: 60 by default, at most 3600."""
        raise no_transactions(self.url)

    def run_transaction(
        self, fn: Callable[[Transaction], T], retries: int = 5, *, timeout: float | None = None
    ) -> T:
        """Run `fn(transaction)`, commit the transaction, and return the result of `fn`. The transaction takes
        effect exactly once, or an error says why it did not.

        `fn` runs again, up to `retries` times, if the transaction was rolled back, or if `fn` raises a
        retryable error of Hawser's without effect. So `fn` must get its messages and take its samples itself.
        An unknown outcome is asked for until it is known, and `fn` does not run again before; OutcomeUnknown
        if that takes longer than the transaction's `timeout`, 60 seconds by default. Any other error of `fn`
        rolls back and is raised; an error after `fn` has committed is only raised."""
        raise no_transactions(self.url)

    @property
    def xa(self) -> "XA":
        """This connection as an XA resource of an outside coordinator, which commits in two phases."""
        raise no_transactions(self.url)

    @abstractmethod
    def close(self) -> None:
        """Leave every topic and queue opened here, after what `publish_nowait` has begun. Samples still held
        stay valid, messages still held are given back; topics and queues stay. In a forked child it does
        nothing: the connection is the parent's."""

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

    def _opened(self) -> None:
        """Close the bus at the end of the process, if not before."""
        _open_buses.add(self)

    def _require_open(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this bus was opened before a fork; connect again in the child")
        if self._closed:
            raise Closed("this bus is closed; connect again")


def is_cluster(url: Any) -> bool:
    """Whether an URL names a cluster."""
    return isinstance(url, str) and url.startswith(CLUSTER_SCHEME)


def codec_of(schema: Any) -> "Codec[Any] | None":
    """The codec of a schema, if one is given."""
    if schema is None:
        return None
    from hawser.record import schema as schemas

    # msgspec describes a type at its first use, which crashes if another thread uses the type meanwhile.
    with _describing:
        return schemas.codec_of(schema)


def anonymous_name() -> str:
    """The name of a bus that was given none."""
    return f"anonymous-{os.getpid()}-{os.urandom(4).hex()}"


@atexit.register
def _close_buses() -> None:
    for bus in list(_open_buses):
        bus.close()

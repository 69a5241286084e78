"""Subscriptions on one host: taking samples, by call, by iteration, or in an event loop."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from hawser.api.local.consuming import end_waits
from hawser.api.sample import Sample
from hawser.api.subscription import Reliable, Start, Subscription, check_start, is_count
from hawser.errors import Closed, OffsetOutOfRange, UsageError
from hawser.limits import SETTING_BOUNDS
from hawser.memory import Region, Subscriber
from hawser.memory import Sample as NativeSample
from hawser.memory.names import group_record

if TYPE_CHECKING:
    from hawser.record.schema import Codec

__all__ = ["LocalSubscription", "SubscribeOptions", "join"]

T = TypeVar("T")

# It is a plain C type and cannot be derived.
Sample.register(NativeSample)

_RELIABLE_LEVELS: Final = {False: 0, True: 1, "durable": 2}
# The last moment a sample's time stamp can say.
_LATEST_MOMENT_NS: Final = (1 << 63) - 1
# How often a join by time looks again when what it found is overwritten before it has joined.
_JOIN_ATTEMPTS: Final = 100


class LocalSubscription(Subscription[T]):
    """A participant that takes every sample of a topic, in order, from its start on."""

    def __init__(self, name: str, native: Subscriber) -> None:
        self.name = name
        self._native = native
        self._closed = False
        # The native calls in the place of the methods below: a message then costs no Python frame.
        vars(self).update(take=native.take, take_value=native.take_value, take_values=native.take_values)

    def take(self, timeout: float | None = None) -> Sample | None:
        return cast("Sample | None", self._native.take(timeout))

    def take_many(self, count: int, timeout: float | None = None) -> list[Sample]:
        return cast("list[Sample]", self._native.take_many(count, timeout))

    def take_value(self, timeout: float | None = None) -> T | None:
        return cast("T | None", self._native.take_value(timeout))

    def take_values(self, count: int, timeout: float | None = None) -> list[T]:
        return self._native.take_values(count, timeout)

    def take_batches(self, count: int = 1, timeout: float | None = None) -> list[Any]:
        raise UsageError("topics on one host are not kept as Arrow batches; use take_many or take_values")

    @property
    def missed(self) -> int:
        return self._native.missed

    @property
    def received(self) -> int:
        return self._native.received

    @property
    def position(self) -> int:
        return self._native.position

    @property
    def held(self) -> int:
        return self._native.held

    @property
    def incarnation(self) -> int:
        return self._native.incarnation

    def commit(self) -> None:
        self._native.commit()

    def close(self) -> None:
        self._closed = True
        end_waits(self._native)
        self._native.close()

    def values(self) -> Iterator[T]:
        for sample in self:
            yield sample.value

    def __next__(self) -> Sample:
        try:
            return cast("Sample", self._native.take_next())
        except Closed:
            if self._closed:
                raise StopIteration from None
            raise

    async def __anext__(self) -> Sample:
        from hawser.api.local.waiter_thread import until

        try:
            return cast("Sample", await until(lambda: self._native.take_next(0), self._native, None))
        except Closed:
            if self._closed:
                raise StopAsyncIteration from None
            raise


class SubscribeOptions(NamedTuple):
    """The arguments of `Topic.subscribe`."""

    history: int = 0
    start: Start = None
    group: str | None = None
    reliable: Reliable = False
    resume: bool = False
    max_held: int | None = None
    max_lag: int | None = None


def join(
    region: Region, name: str, named: bool, options: SubscribeOptions, codec: "Codec[Any] | None"
) -> Subscriber:
    """Join a topic as subscriber `name`; UsageError for options that are invalid, or invalid together."""
    settings = region.settings()
    _check(options, int(settings["max_held"]))
    _check_max_lag(options)
    arguments: dict[str, Any] = {
        "reliable": _RELIABLE_LEVELS[options.reliable],
        "record": _record(options, name, named),
        "commit": options.group is not None,
        "max_lag": options.max_lag or 0,
        "max_held": options.max_held or 0,
        "decode": None if codec is None else codec.decode,
    }
    if not isinstance(options.start, datetime):
        place = _place(options, int(settings["history"]))
        return region.subscriber(name, **place, **arguments)
    moment = min(max(int(options.start.timestamp() * 1_000_000) * 1_000, 0), _LATEST_MOMENT_NS)
    for _ in range(_JOIN_ATTEMPTS):
        try:
            return region.subscriber(name, start=region.offset_at(moment), **arguments)
        except OffsetOutOfRange:
            continue
    raise OffsetOutOfRange(
        f"the samples of topic {region.name!r} from {options.start} on are overwritten faster than they can "
        "be found; give the topic more history"
    )


def _place(options: SubscribeOptions, kept: int) -> dict[str, Any]:
    match options.start:
        case None:
            return {"history": options.history}
        case "earliest":
            return {"history": kept}
        case "latest":
            return {}
        case offset:
            return {"start": offset}


def _record(options: SubscribeOptions, name: str, named: bool) -> str:
    """The name under which the region keeps the subscription's position; empty if it keeps none."""
    if options.group is not None:
        return group_record(options.group)
    if not options.resume and options.reliable != "durable":
        return ""
    if not named:
        raise UsageError(
            "a position is kept under the name of the bus, and this one has none; "
            "connect with name=, or give the subscription a group"
        )
    return name


def _check(options: SubscribeOptions, most_held: int) -> None:
    check_start(options.history, options.start)
    if not (isinstance(options.reliable, bool) or options.reliable == "durable"):
        raise UsageError(f'reliable={options.reliable!r} is not False, True or "durable"')
    if options.resume and options.group is not None:
        raise UsageError("resume keeps the bus's own position and group that of the group; give one of them")
    if options.max_held is not None and not (
        is_count(options.max_held) and 0 < options.max_held <= most_held
    ):
        raise UsageError(
            f"max_held={options.max_held!r} is outside 1 to {most_held}, the max_held of the topic "
            f"(which may be up to {SETTING_BOUNDS['max_held'].highest} in a new one)"
        )


def _check_max_lag(options: SubscribeOptions) -> None:
    if options.max_lag is None:
        return
    if options.reliable != "durable":
        raise UsageError('max_lag bounds a durable subscription; give reliable="durable" with it')
    if not is_count(options.max_lag) or options.max_lag < 1:
        raise UsageError(
            f"max_lag={options.max_lag!r} is no number of samples; leave it out to make publishers wait"
        )

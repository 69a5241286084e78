"""`hawser topic record|replay`: messages carried between files, shared memory and clusters."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

import hawser
from hawser.cli.following import open_when_there
from hawser.cli.options import chosen_url, connect, shared_options, topic_argument, wants_json
from hawser.cli.output import byte_size, count, notice, print_json
from hawser.cli.recording import Message, RecordingReader, RecordingWriter
from hawser.cli.values import per_second, setting_options
from hawser.record.record import Record

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["record", "replay"]

_LOOK_SECONDS = 0.2
_MOST_UNDER_WAY = 4096
# Half of what a client lets wait for one partition: were it more, publishing would be refused in the middle.
_MOST_BYTES_UNDER_WAY = 32 << 20
# A partition without a leader may get one again for so long.
_PATIENCE_SECONDS = 30.0
_SCHEMES = ("shm:", "hawser:")


class _Target(Protocol):
    """Where messages go."""

    def add(self, message: Message) -> None: ...

    def flush(self) -> None: ...


class _TopicTarget:
    """A topic; its partitions are chosen anew by the keys."""

    def __init__(self, topic: "hawser.Topic[Any]") -> None:
        self._topic = topic

    def add(self, message: Message) -> None:
        entry = message.record
        self._topic.publish(entry.value, key=entry.key, headers=dict(entry.headers) or None)

    def flush(self) -> None:
        """Everything published is out."""


class _PipelinedTarget:
    """A topic of a cluster: many messages are under way at a time, and none is done before it is there."""

    def __init__(self, topic: "hawser.Topic[Any]") -> None:
        self._topic = topic
        self._under_way: deque[tuple[int, Future[hawser.Receipt]]] = deque()
        self._bytes_under_way = 0

    def add(self, message: Message) -> None:
        entry = message.record
        size = _size(entry)
        while self._under_way and (
            len(self._under_way) >= _MOST_UNDER_WAY or self._bytes_under_way + size > _MOST_BYTES_UNDER_WAY
        ):
            self._wait_for_oldest()
        headers = dict(entry.headers) or None
        future = self._topic.publish_nowait(entry.value, key=entry.key, headers=headers)
        self._under_way.append((size, future))
        self._bytes_under_way += size

    def flush(self) -> None:
        while self._under_way:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        size, future = self._under_way.popleft()
        self._bytes_under_way -= size
        future.result()


def _size(entry: Record) -> int:
    headers = sum(len(name) + len(value) for name, value in entry.headers.items())
    return len(entry.value) + len(entry.key or b"") + headers


class _Start(NamedTuple):
    """Where to begin: as `Topic.subscribe` takes it."""

    history: int
    start: Any


@click.command()
@topic_argument
@click.option("--to", "target", required=True, metavar="FILE|URL", help="A new file, or a bus to publish to.")
@click.option("--as", "new_name", metavar="TOPIC", help="The topic's name there; the same if not given.")
@click.option("--history", type=click.IntRange(min=0), default=0, help="Begin with so many kept messages.")
@click.option("--start", metavar="earliest|latest|OFFSET", help="Begin there instead.")
@click.option("--count", "times", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--seconds", type=float, help="End after so long; otherwise when interrupted.")
@shared_options
def record(
    name: str,
    target: str,
    new_name: str | None,
    history: int,
    start: str | None,
    times: int | None,
    seconds: float | None,
) -> None:
    """Record the messages of a topic as they come, until interrupted: to a file, or to another bus."""
    begin = _Start(history, _start(start))
    with ExitStack() as stack:
        bus = stack.enter_context(connect())
        topic = stack.enter_context(open_when_there(bus, name, seconds))
        known = topic.info().settings
        if _is_url(target):
            sink = _open_topic(stack, target, new_name or name, _carried(known))
        else:
            sink = stack.enter_context(_recording(Path(target), new_name or name, bus.url, known))
        # Joined before it says so: whatever is published from then on is recorded.
        subscription = stack.enter_context(_subscribed(topic, begin))
        notice(f"recording topic {name!r} to {target}")
        _carry(_followed(subscription, seconds), sink, times, name, target)


@click.command()
@click.argument("source", metavar="FILE|URL")
@click.option("--topic", "name", metavar="TOPIC", help="Of a URL: which topic; of a file it is known.")
@click.option("--to", "target", metavar="FILE|URL", help="A bus or a new file; else the bus of --url.")
@click.option("--as", "new_name", metavar="TOPIC", help="The topic's name there; the same if not given.")
@click.option("--rate", type=per_second, help="So many messages a second.")
@click.option("--fast", is_flag=True, help="As fast as they can be published.")
@click.option("--count", "times", type=click.IntRange(min=1), help="End after so many messages.")
@setting_options
@shared_options
def replay(
    source: str,
    name: str | None,
    target: str | None,
    new_name: str | None,
    rate: float | None,
    fast: bool,
    times: int | None,
    **settings: Any,
) -> None:
    """Publish again what a file or a topic holds, at the intervals at which it was published first.

    Of a topic: what it holds now. `hawser topic record` carries what comes.
    """
    if rate is not None and fast:
        raise click.UsageError("Give one of --rate and --fast.")
    target = target or chosen_url() or "shm://"
    with ExitStack() as stack:
        reader: RecordingReader | None = None
        if _is_url(source):
            if name is None:
                raise click.UsageError("Give --topic: which topic of that bus.")
            messages, known, url = _kept(stack, source, name)
        else:
            reader = stack.enter_context(RecordingReader(Path(source)))
            messages, known, url = reader.messages(), reader.origin.settings, reader.origin.url
            name = name or reader.origin.topic
        if _is_url(target):
            sink = _open_topic(stack, target, new_name or name, {**_carried(known), **_given(settings)})
        else:
            sink = stack.enter_context(_recording(Path(target), new_name or name, url, known))
        _carry(_timed(messages, rate, fast), sink, times, source, target)
        if reader is not None and reader.cut_off:
            notice(f"{source} ends within a message: whoever recorded it was interrupted")


def _is_url(text: str) -> bool:
    return text.startswith(_SCHEMES)


def _start(text: str | None) -> str | int | None:
    if text is None or text in ("earliest", "latest"):
        return text
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is not earliest, latest or an offset", param_hint="--start")
    return int(text)


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _carried(known: dict[str, Any]) -> dict[str, Any]:
    """Settings of the source that a new topic needs to hold the same messages."""
    return {name: known[name] for name in ("slot_size", "partitions") if name in known}


def _open_topic(stack: ExitStack, url: str, name: str, settings: dict[str, Any]) -> _Target:
    bus = stack.enter_context(hawser.connect(url))
    try:
        topic = stack.enter_context(bus.topic(name, create=False))
    except hawser.NotFound:
        topic = stack.enter_context(bus.topic(name, **settings))
    return _PipelinedTarget(topic) if url.startswith("hawser:") else _TopicTarget(topic)


@contextmanager
def _recording(path: Path, name: str, url: str, settings: dict[str, Any]) -> Iterator[_Target]:
    writer = RecordingWriter(path, name, url, settings)
    try:
        yield writer
    finally:
        writer.close()


def _subscribed(topic: "hawser.Topic[Any]", begin: _Start) -> Any:
    if begin.start is not None:
        return topic.subscribe(start=begin.start)
    return topic.subscribe(history=begin.history)


def _followed(subscription: Any, seconds: float | None) -> Iterator[Message | None]:
    """Messages as they come; None again and again while there are none."""
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        sample = subscription.take(_LOOK_SECONDS)
        yield None if sample is None else _message(sample)


def _kept(stack: ExitStack, url: str, name: str) -> tuple[Iterator[Message], dict[str, Any], str]:
    """What a topic holds now."""
    bus = stack.enter_context(hawser.connect(url))
    topic = stack.enter_context(bus.topic(name, create=False))
    subscription = stack.enter_context(topic.subscribe(start="earliest"))
    info = _whole_info(topic)
    last = {partition: offsets[-1] for partition, offsets in _held(info).items() if offsets}
    return _until(topic, subscription, last), info.settings, bus.url


def _whole_info(topic: "hawser.Topic[Any]") -> hawser.TopicInfo:
    """The topic when each of its partitions has answered."""
    patience = _Patience(topic.name)
    while True:
        info = topic.info()
        silent = [partition for partition, offsets in _held(info).items() if offsets is None]
        if not silent:
            return info
        patience.use(silent)
        time.sleep(_LOOK_SECONDS)


def _until(topic: "hawser.Topic[Any]", subscription: Any, last: dict[int, int]) -> Iterator[Message]:
    """The messages of each partition up to its last one."""
    patience = _Patience(topic.name)
    while last:
        sample = subscription.take(_LOOK_SECONDS)
        if sample is None:
            held = _held(topic.info())
            for partition, until in list(last.items()):
                offsets = held[partition]
                # Retention may have taken the rest meanwhile; no answer says nothing of that.
                if offsets is not None and (not offsets or offsets.start > until):
                    del last[partition]
            patience.use([partition for partition in last if held[partition] is None])
            continue
        patience.renew()
        message = _message(sample)
        until = last.get(message.partition, -1)
        if message.offset >= until:
            last.pop(message.partition, None)
        if message.offset <= until:
            yield message


class _Patience:
    """Raises Unavailable when partitions are silent for too long: without them a copy would not be whole."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._since: float | None = None

    def renew(self) -> None:
        self._since = None

    def use(self, silent: list[int]) -> None:
        """These partitions do not answer now."""
        now = time.monotonic()
        if not silent:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > _PATIENCE_SECONDS:
            names = ", ".join(map(str, silent))
            raise hawser.Unavailable(
                f"partitions {names} of topic {self._topic!r} have not answered for {_PATIENCE_SECONDS:g} s; "
                "what they hold is not copied. See `hawser cluster status`, and replay again from the start"
            )


def _held(info: hawser.TopicInfo) -> dict[int, range | None]:
    """The offsets that each partition holds; None if it did not answer."""
    if info.partitions:
        # Offsets begin at 1: an empty partition that answers ends there.
        return {each.partition: range(each.start, each.end) if each.end else None for each in info.partitions}
    return {0: range(info.oldest, info.head + 1) if info.oldest > 0 else range(0)}


def _message(sample: hawser.Sample) -> Message:
    with sample:
        entry = Record(bytes(sample), sample.key, dict(sample.headers), sample.timestamp_ns)
        return Message(sample.partition, sample.offset, sample.lost_before, entry)


def _timed(messages: Iterable[Message], rate: float | None, fast: bool) -> Iterator[Message]:
    """Each message not before its time; one that is late does not delay the others."""
    began = time.monotonic()
    first_ns: int | None = None
    for number, message in enumerate(messages):
        if first_ns is None:
            first_ns = message.record.timestamp_ns
        if not fast:
            due = number / rate if rate else (message.record.timestamp_ns - first_ns) / 1e9
            time.sleep(max(0.0, began + due - time.monotonic()))
        yield message


def _carry(
    messages: Iterable[Message | None], sink: _Target, times: int | None, source: str, target: str
) -> None:
    """Until there are no more, or enough, or somebody interrupts it, which is no failure."""
    carried = lost = size = 0
    with suppress(KeyboardInterrupt), _progress() as show:
        for message in messages:
            if message is None:
                sink.flush()
            else:
                sink.add(message)
                carried += 1
                lost += message.lost_before
                size += len(message.record.value)
            show(carried, size)
            if times is not None and carried >= times:
                break
    sink.flush()
    if wants_json():
        print_json({"source": source, "target": target, "messages": carried, "bytes": size, "lost": lost})
    else:
        notice(f"{count(carried)} messages with {byte_size(size)} from {source} to {target}")
        if lost:
            notice(f"{count(lost)} messages were overwritten before they could be read")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Say how many, where somebody watches."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console

    said = 0.0
    with Console(stderr=True).status("nothing yet") as status:

        def show(carried: int, size: int) -> None:
            nonlocal said
            if time.monotonic() >= said + _LOOK_SECONDS:
                said = time.monotonic()
                status.update(f"{count(carried)} messages, {byte_size(size)}")

        yield show

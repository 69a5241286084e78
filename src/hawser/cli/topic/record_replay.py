"""`hawser topic record|replay`: copy messages between files, shared memory and clusters.

A source yields messages, and gaps where messages were overwritten. A sink, a file or a topic, takes them. The
report counts what is known to be in the sink, also after an interrupt.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import click

import hawser
from hawser.cli.options import chosen_url, connect, shared_options, topic_argument, wants_json
from hawser.cli.output import byte_size, count, messages_were, notice, print_json, report_at_end
from hawser.cli.topic.counted_publisher import CountedPublisher
from hawser.cli.topic.echo import wait_for_topic
from hawser.cli.topic.recording_file import Message, RecordingReader, RecordingWriter
from hawser.cli.values import per_second, setting_options
from hawser.record.record import Record

__all__ = ["record", "replay"]

_LOOK_SECONDS: Final = 0.2
_FLUSH_SECONDS: Final = 1.0
# Time for a partition without a leader to elect one.
_SILENCE_SECONDS: Final = 30.0
_SCHEMES: Final = ("shm:", "hawser:")


class _Sink(Protocol):
    """The destination of messages: a file or a topic."""

    @property
    def copied(self) -> "_Copied": ...

    def add(self, message: Message) -> None:
        """Add a message. UsageError if this message or an earlier one is too large; it is left out."""

    def flush(self) -> None:
        """Return when every added message is in the sink."""


class _Copied(NamedTuple):
    """The messages known to be in a sink; `unknown` more may be in it."""

    messages: int
    message_bytes: int
    unknown: int = 0


class _FileSink:
    """A sink that writes a new recording."""

    def __init__(self, writer: RecordingWriter) -> None:
        self.add = writer.add
        self.flush = writer.flush
        self._writer = writer

    @property
    def copied(self) -> _Copied:
        return _Copied(self._writer.messages, self._writer.message_bytes, self._writer.waiting)


class _TopicSink:
    """A sink that publishes to a topic; keys choose the partitions again."""

    def __init__(self, topic: "hawser.Topic[Any]") -> None:
        self._publisher = CountedPublisher(topic)

    @property
    def copied(self) -> _Copied:
        counts = self._publisher.counts
        return _Copied(counts.published, counts.published_bytes, counts.unknown)

    def add(self, message: Message) -> None:
        entry = message.record
        self._publisher.publish(entry.value, entry.key, dict(entry.headers) or None)
        self._raise_failure()

    def flush(self) -> None:
        self._publisher.drain()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._publisher.failures:
            raise self._publisher.failures.popleft().error


class _Source(NamedTuple):
    """The origin of messages: the bus, the topic's settings, and the file whose modes a recording gets."""

    url: str
    settings: dict[str, Any]
    like: Path | None


class _Lost(NamedTuple):
    """Messages that were overwritten before they were read, at the end of a partition."""

    messages: int


class _Start(NamedTuple):
    """The start position, as arguments of `Topic.subscribe`."""

    history: int
    start: Any


@click.command()
@topic_argument
@click.option("--to", "target", required=True, metavar="FILE|URL", help="A new file, or a bus to publish to.")
@click.option("--as", "new_name", metavar="TOPIC", help="The topic's name in the target; default: the same.")
@click.option(
    "--history", type=click.IntRange(min=0), default=0, help="Start with this many retained messages."
)
@click.option("--start", metavar="earliest|latest|OFFSET", help="Start at this position instead.")
@click.option("--count", "times", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--seconds", type=float, help="Stop after this many seconds; default: when interrupted.")
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
    """Record the messages of a topic as they arrive, to a file or another bus, until interrupted."""
    begin = _Start(history, _start(start))
    with ExitStack() as stack:
        bus = stack.enter_context(connect())
        topic = stack.enter_context(wait_for_topic(bus, name, seconds))
        source = _source(bus.url, topic.info())
        if _is_url(target):
            sink = _open_topic(stack, target, new_name or name, _copied_settings(source.settings))
        else:
            sink = stack.enter_context(_recording(Path(target), new_name or name, source))
        # It subscribes before it prints the notice, so that every later message is recorded.
        subscription = stack.enter_context(_subscribed(topic, begin))
        notice(f"recording topic {name!r} to {target}")
        copy = _Copy(sink, times, name, target)
        try:
            copy.run(_live_messages(subscription, seconds))
        except KeyboardInterrupt:
            # An interrupt is the usual end, unless --count was given.
            if times is not None:
                raise


@click.command()
@click.argument("given", metavar="FILE|URL")
@click.option("--topic", "name", metavar="TOPIC", help="The topic to read from a URL; a file names its own.")
@click.option("--to", "target", metavar="FILE|URL", help="A bus or a new file; default: the bus of --url.")
@click.option("--as", "new_name", metavar="TOPIC", help="The topic's name in the target; default: the same.")
@click.option("--rate", type=per_second, help="Messages per second.")
@click.option("--fast", is_flag=True, help="Publish as fast as possible.")
@click.option("--count", "times", type=click.IntRange(min=1), help="Stop after this many messages.")
@setting_options
@shared_options
def replay(
    given: str,
    name: str | None,
    target: str | None,
    new_name: str | None,
    rate: float | None,
    fast: bool,
    times: int | None,
    **settings: Any,
) -> None:
    """Publish the messages of a file or a topic again, at their original intervals.

    Replays what a topic holds now; use `hawser topic record` for new messages.
    """
    if rate is not None and fast:
        raise click.UsageError("Give one of --rate and --fast.")
    target = target or chosen_url() or "shm://"
    with ExitStack() as stack:
        reader: RecordingReader | None = None
        messages: Iterator[Message | _Lost]
        if _is_url(given):
            if name is None:
                raise click.UsageError("Give --topic, the topic to read from that bus.")
            messages, source = _stored_messages(stack, given, name)
        else:
            reader = stack.enter_context(RecordingReader(Path(given)))
            messages, source = (
                reader.messages(),
                _Source(reader.origin.url, reader.origin.settings, Path(given)),
            )
            name = name or reader.origin.topic
        if _is_url(target):
            needed = {**_copied_settings(source.settings), **_given(settings)}
            sink = _open_topic(stack, target, new_name or name, needed)
        else:
            sink = stack.enter_context(_recording(Path(target), new_name or name, source))
        copy = _Copy(sink, times, given, target)
        copy.run(_paced(messages, rate, fast))
        if reader is None:
            copy.require_complete()
        elif reader.cut_off:
            notice(f"{given} ends within a message, because its recording was interrupted")


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


def _copied_settings(known: dict[str, Any]) -> dict[str, Any]:
    """Settings of the source that a new topic needs to hold its messages."""
    return {name: known[name] for name in ("slot_size", "partitions") if name in known}


def _open_topic(stack: ExitStack, url: str, name: str, settings: dict[str, Any]) -> _Sink:
    bus = stack.enter_context(hawser.connect(url))
    try:
        topic = stack.enter_context(bus.topic(name, create=False))
    except hawser.NotFound:
        topic = stack.enter_context(bus.topic(name, **settings))
    return _TopicSink(topic)


@contextmanager
def _recording(path: Path, name: str, source: _Source) -> Iterator[_Sink]:
    writer = RecordingWriter(path, name, source.url, source.settings, source.like)
    try:
        yield _FileSink(writer)
    finally:
        writer.close()


def _subscribed(topic: "hawser.Topic[Any]", begin: _Start) -> Any:
    if begin.start is not None:
        return topic.subscribe(start=begin.start)
    return topic.subscribe(history=begin.history)


def _live_messages(subscription: Any, seconds: float | None) -> Iterator[Message | None]:
    """Messages as they arrive; None at intervals while there are none."""
    end = None if seconds is None else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        sample = subscription.take(_LOOK_SECONDS)
        yield None if sample is None else _message(sample)


def _source(url: str, info: hawser.TopicInfo) -> _Source:
    return _Source(url, info.settings, Path(info.path) if info.path else None)


def _stored_messages(stack: ExitStack, url: str, name: str) -> tuple[Iterator[Message | _Lost], _Source]:
    """The messages that a topic holds now, and their source."""
    bus = stack.enter_context(hawser.connect(url))
    topic = stack.enter_context(bus.topic(name, create=False))
    subscription = stack.enter_context(topic.subscribe(start="earliest"))
    info = _complete_info(topic)
    wanted = {partition: offsets for partition, offsets in _held_ranges(info).items() if offsets}
    return _read_ranges(topic, subscription, wanted), _source(bus.url, info)


def _complete_info(topic: "hawser.Topic[Any]") -> hawser.TopicInfo:
    """The state of the topic once each of its partitions has answered."""
    silence = _SilenceTimeout(topic.name)
    while True:
        info = topic.info()
        silent = [partition for partition, offsets in _held_ranges(info).items() if offsets is None]
        if not silent:
            return info
        silence.use(silent)
        time.sleep(_LOOK_SECONDS)


def _read_ranges(
    topic: "hawser.Topic[Any]", subscription: Any, wanted: dict[int, range]
) -> Iterator[Message | _Lost]:
    """The messages of these offset ranges. Messages lost at the end of a range are yielded as _Lost."""
    silence = _SilenceTimeout(topic.name)
    while wanted:
        sample = subscription.take(_LOOK_SECONDS)
        if sample is None:
            held = _held_ranges(topic.info())
            for partition, rest in list(wanted.items()):
                offsets = held[partition]
                # Retention may have removed the rest. A partition that does not answer proves nothing.
                if offsets is not None and (not offsets or offsets.start >= rest.stop):
                    del wanted[partition]
                    yield _Lost(len(rest))
            silence.use([partition for partition in wanted if held[partition] is None])
            continue
        silence.renew()
        message = _message(sample)
        rest = wanted.pop(message.partition, range(0))
        if message.offset >= rest.stop:
            if rest:
                yield _Lost(len(rest))
            continue
        if message.offset + 1 < rest.stop:
            wanted[message.partition] = range(message.offset + 1, rest.stop)
        yield message


class _SilenceTimeout:
    """Raises Unavailable when partitions do not answer for too long: the copy would be incomplete."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._since: float | None = None

    def renew(self) -> None:
        self._since = None

    def use(self, silent: list[int]) -> None:
        """Note the partitions that do not answer now."""
        now = time.monotonic()
        if not silent:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > _SILENCE_SECONDS:
            names = ", ".join(map(str, silent))
            raise hawser.Unavailable(
                f"partitions {names} of topic {self._topic!r} have not answered for {_SILENCE_SECONDS:g} s; "
                "their messages are not copied. Check `hawser cluster status`, then replay from the start"
            )


def _held_ranges(info: hawser.TopicInfo) -> dict[int, range | None]:
    """The offsets of each partition; None if it did not answer."""
    if info.partitions:
        # Offsets begin at 1, so an empty partition that answers has the end 1.
        return {each.partition: range(each.start, each.end) if each.end else None for each in info.partitions}
    return {0: range(info.oldest, info.head + 1) if info.oldest > 0 else range(0)}


def _message(sample: hawser.Sample) -> Message:
    with sample:
        entry = Record(bytes(sample), sample.key, dict(sample.headers), sample.timestamp_ns)
        return Message(sample.partition, sample.offset, sample.lost_before, entry)


def _paced(messages: Iterable[Message | _Lost], rate: float | None, fast: bool) -> Iterator[Message | _Lost]:
    """Yield each message when it is due; a late message does not delay the others."""
    began = time.monotonic()
    first_ns: int | None = None
    number = 0
    for message in messages:
        if isinstance(message, Message) and not fast:
            if first_ns is None:
                first_ns = message.record.timestamp_ns
            due = number / rate if rate else (message.record.timestamp_ns - first_ns) / 1e9
            time.sleep(max(0.0, began + due - time.monotonic()))
            number += 1
        yield message


class _Copy:
    """Copies messages into a sink, and reports the messages known to be in it however the copy ends."""

    def __init__(self, sink: _Sink, times: int | None, source: str, target: str) -> None:
        self._sink = sink
        self._times = times
        self._source = source
        self._target = target
        self._lost = self._refused = 0

    def run(self, messages: Iterable[Message | _Lost | None]) -> None:
        """Copy all messages, or the first `times`. An interrupt is raised again after the report."""
        with report_at_end(self._report):
            try:
                with _progress() as show:
                    self._copy_messages(messages, show)
            finally:
                self._flush()
        if self._refused:
            raise hawser.Rejected(f"{messages_were(self._refused)} too large for {self._target}; see above")

    def require_complete(self) -> None:
        """Raise Lagged if messages were lost."""
        if self._lost:
            raise hawser.Lagged(
                f"{messages_were(self._lost)} overwritten in {self._source} before they were read; the "
                f"copy in {self._target} is incomplete"
            )

    def _copy_messages(
        self, messages: Iterable[Message | _Lost | None], show: Callable[[int, int], None]
    ) -> None:
        taken = size = 0
        flushed_at = time.monotonic()
        for message in messages:
            if isinstance(message, Message):
                self._lost += message.lost_before
                self._add(message)
                taken += 1
                size += len(message.record.value)
            elif message is not None:
                self._lost += message.messages
            if message is None or time.monotonic() >= flushed_at + _FLUSH_SECONDS:
                self._flush()
                flushed_at = time.monotonic()
            show(taken, size)
            if self._times is not None and taken >= self._times:
                break

    def _add(self, message: Message) -> None:
        try:
            self._sink.add(message)
        except hawser.UsageError as error:
            self._refused += 1
            notice(str(error))

    def _flush(self) -> None:
        while True:
            try:
                self._sink.flush()
            except hawser.UsageError as error:
                self._refused += 1
                notice(str(error))
            else:
                return

    def _report(self) -> None:
        copied = self._sink.copied
        if wants_json():
            print_json(
                {
                    "source": self._source,
                    "target": self._target,
                    "messages": copied.messages,
                    "bytes": copied.message_bytes,
                    "unknown": copied.unknown,
                    "refused": self._refused,
                    "lost": self._lost,
                }
            )
            return
        size = byte_size(copied.message_bytes)
        notice(f"{count(copied.messages)} messages with {size} from {self._source} to {self._target}")
        if copied.unknown:
            notice(
                f"{messages_were(copied.unknown)} perhaps copied, too: the command ended before the answer"
            )
        if self._lost:
            notice(f"{messages_were(self._lost)} overwritten before they were read")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show the number of copied messages on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _, __: None
        return
    from rich.console import Console

    said = 0.0
    with Console(stderr=True).status("nothing yet") as status:

        def show(copied: int, size: int) -> None:
            nonlocal said
            if time.monotonic() >= said + _LOOK_SECONDS:
                said = time.monotonic()
                status.update(f"{count(copied)} messages, {byte_size(size)}")

        yield show

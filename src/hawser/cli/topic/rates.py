"""`hawser topic hz` and `hawser topic bw`: rate and bandwidth, by the publish times of messages."""

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click

import hawser
from hawser.cli.options import connect, shared_options, topic_argument, wants_json
from hawser.cli.output import byte_size, count, notice, print_json
from hawser.cli.topic.echo import wait_for_topic

__all__ = ["bw", "hz"]

_UPDATE_SECONDS = 1.0
_BATCH = 1024
Figures = dict[str, Any]


@dataclass
class Window:
    """Publish times and sizes of the newest messages of a topic."""

    seconds: float
    times: deque[int] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)
    missed: deque[int] = field(default_factory=deque)

    def add(self, sample: hawser.Sample) -> None:
        self.times.append(sample.timestamp_ns)
        self.sizes.append(len(sample))
        self.missed.append(sample.lost_before)

    def forget_old(self) -> None:
        oldest = time.time_ns() - int(self.seconds * 1e9)
        while self.times and self.times[0] < oldest:
            self.times.popleft()
            self.sizes.popleft()
            self.missed.popleft()

    def span_seconds(self) -> float:
        """The time between the first and the last message."""
        return (self.times[-1] - self.times[0]) / 1e9 if self.times else 0.0

    def rate(self) -> float:
        """Messages per second, including missed ones."""
        span = self.span_seconds()
        return (len(self.times) - 1 + self.lost()) / span if span > 0 else 0.0

    def lost(self) -> int:
        """Messages missed after the first one of the window."""
        return sum(self.missed) - (self.missed[0] if self.missed else 0)


def _hz_figures(window: Window) -> Figures:
    times = list(window.times)
    # Only between adjacent messages: the interval across missed messages is unknown.
    gaps = [
        (later - earlier) / 1e9
        for earlier, later, lost in zip(times, times[1:], list(window.missed)[1:], strict=False)
        if not lost
    ]
    mean = sum(gaps) / len(gaps) if gaps else 0.0
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) if gaps else 0.0
    return {
        "rate_hz": window.rate(),
        "least_seconds": min(gaps, default=0.0),
        "most_seconds": max(gaps, default=0.0),
        "deviation_seconds": deviation,
        "messages": len(times),
        "missed": window.lost(),
    }


def _bw_figures(window: Window) -> Figures:
    span = window.span_seconds()
    sizes = list(window.sizes)
    return {
        "bytes_per_second": sum(list(sizes)[1:]) / span if span > 0 else 0.0,
        "mean_bytes": sum(sizes) / len(sizes) if sizes else 0.0,
        "least_bytes": min(sizes, default=0),
        "most_bytes": max(sizes, default=0),
        "messages": len(sizes),
        "missed": window.lost(),
    }


def _hz_line(figures: Figures) -> str:
    if not figures["messages"]:
        return "no new messages"
    return (
        f"{figures['rate_hz']:>12,.2f} Hz   interval {_duration(figures['least_seconds'])} to "
        f"{_duration(figures['most_seconds'])}, deviation {_duration(figures['deviation_seconds'])}"
        f"{_counts(figures)}"
    )


def _bw_line(figures: Figures) -> str:
    if not figures["messages"]:
        return "no new messages"
    names = ("bytes_per_second", "least_bytes", "most_bytes", "mean_bytes")
    rate, least, most, mean = (byte_size(round(figures[name])) for name in names)
    return f"{rate:>12}/s   message {least} to {most}, mean {mean}{_counts(figures)}"


def _counts(figures: Figures) -> str:
    missed = f", {count(figures['missed'])} missed" if figures["missed"] else ""
    return f"   {count(figures['messages'])} messages{missed}"


def _duration(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _watch(name: str, window_seconds: float, seconds: float | None) -> Iterator[Window]:
    """Yield the newest messages of a topic once a second."""
    end = None if seconds is None else time.monotonic() + seconds
    with connect() as bus:
        while True:
            topic = wait_for_topic(bus, name)
            try:
                with topic.subscribe() as subscription:
                    yield from _updates(subscription, window_seconds, end)
                return
            except hawser.Closed:
                notice(f"topic {name!r} was deleted")
            finally:
                topic.close()


def _updates(
    subscription: "hawser.Subscription[Any]", window_seconds: float, end: float | None
) -> Iterator[Window]:
    window = Window(window_seconds)
    update = time.monotonic() + _UPDATE_SECONDS
    while True:
        now = time.monotonic()
        for sample in subscription.take_many(_BATCH, max(0.0, update - now)):
            with sample:
                window.add(sample)
        if now >= update:
            update += _UPDATE_SECONDS
            window.forget_old()
            yield window
            if end is not None and now >= end:
                return


def _show(
    windows: Iterator[Window], figures_of: Callable[[Window], Figures], line_of: Callable[[Figures], str]
) -> None:
    if wants_json():
        for window in windows:
            print_json(figures_of(window))
    elif sys.stdout.isatty():
        from rich.live import Live
        from rich.text import Text

        with Live(Text("measuring", style="dim"), auto_refresh=False) as live:
            for window in windows:
                live.update(Text(line_of(figures_of(window)).strip()), refresh=True)
    else:
        for window in windows:
            click.echo(line_of(figures_of(window)).strip())
            sys.stdout.flush()


def _options(function: Any) -> Any:
    window = click.option(
        "--window", type=float, default=5.0, show_default=True, help="Seconds to average over."
    )
    seconds = click.option(
        "--seconds", type=float, help="Stop after this many seconds; default: when interrupted."
    )
    return topic_argument(window(seconds(shared_options(function))))


@click.command()
@_options
def hz(name: str, window: float, seconds: float | None) -> None:
    """Print the message rate and its regularity once a second."""
    _show(_watch(name, window, seconds), _hz_figures, _hz_line)


@click.command()
@_options
def bw(name: str, window: float, seconds: float | None) -> None:
    """Print the payload bytes per second and the message sizes once a second."""

    _show(_watch(name, window, seconds), _bw_figures, _bw_line)

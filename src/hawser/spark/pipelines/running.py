"""Runs of a pipeline: one update, or one after the other until somebody ends it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from hawser.errors import HawserError, Unavailable
from hawser.spark.pipelines.place import Place
from hawser.spark.pipelines.server import Server, server

if TYPE_CHECKING:
    from hawser.spark.pipelines.updating import Event

__all__ = ["LANDING", "Plan", "Watcher", "run"]

LANDING: Final = Path(__file__).with_name("landing.py")
_OURS: Final = "spark.hawser."


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run, where, and how often. With `remote`, the URL of a Connect server, `master` is not used.
    `conf` are settings for the pipeline's file and for Spark."""

    place: Place
    file: Path = LANDING
    conf: dict[str, str] = field(default_factory=dict)
    master: str = "local[*]"
    remote: str | None = None
    full_refresh: tuple[str, ...] = ()
    force: bool = False
    every_seconds: float | None = None


class Watcher(Protocol):
    """Who is told what happens."""

    def say(self, text: str) -> None: ...

    def begin(self, tables: list[str]) -> None:
        """An update of these tables begins."""

    def tell(self, event: "Event") -> None: ...

    def end(self, failure: HawserError | None) -> None:
        """The update is over."""


def run(plan: Plan, watcher: Watcher, after_update: Callable[[], None] = lambda: None) -> None:
    """Run the plan: return after an update, or with `every_seconds` never. Unavailable if the directory is in
    use. Whatever ends it, by an exception or a signal, the next run goes on where it was."""
    with plan.place.lock() as lock:
        plan.place.finish_forgetting()
        with _server(plan, lock, watcher) as own_server:
            for _ in _updates(plan, own_server, watcher):
                after_update()


@contextmanager
def _server(plan: Plan, lock: int, watcher: Watcher) -> Iterator[Server | None]:
    """One of our own, None if there is to be one already."""
    if plan.remote is not None:
        # What is behind the address may be a secret.
        watcher.say(f"connecting to {plan.remote.partition(';')[0]}")
        yield None
        return
    watcher.say(f"starting Spark at {plan.master}")
    with server(plan.master, plan.place.directory, plan.place.log, _of_spark(plan.conf), [lock]) as started:
        yield started


def _updates(plan: Plan, own_server: Server | None, watcher: Watcher) -> Iterator[None]:
    from hawser.spark.pipelines.connecting import connected
    from hawser.spark.pipelines.updating import Pipeline

    url = plan.remote if own_server is None else own_server.url
    assert url is not None
    # A server of our own got the others when it was started; many can be set only then.
    conf = plan.conf if own_server is None else _of_pipeline(plan.conf)
    full_refresh = plan.full_refresh
    for number in count():
        began = time.monotonic()
        try:
            # The server keeps all that an update is made of, some megabytes, as long as its session lasts.
            with connected(url) as spark:
                if number == 0:
                    watcher.say(f"Spark {spark.version} answers")
                update = Pipeline(spark, plan.place, plan.file, conf).define()
                if full_refresh:
                    watcher.say(f"made anew: {', '.join(update.forget(full_refresh, plan.force))}")
                    full_refresh = ()
                watcher.begin(update.definitions.tables)
                update.run(watcher.tell)
            watcher.end(None)
        except HawserError as error:
            watcher.end(error)
            _raise_unless_retryable(plan, error, own_server)
            watcher.say(f"{error}; trying again")
        yield
        if plan.every_seconds is None:
            return
        time.sleep(max(0.0, began + plan.every_seconds - time.monotonic()))


def _of_pipeline(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if name.startswith(_OURS)}


def _of_spark(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if not name.startswith(_OURS)}


def _raise_unless_retryable(plan: Plan, error: HawserError, own_server: Server | None) -> None:
    if own_server is not None and not own_server.runs:
        raise Unavailable(
            f"Spark died; what it landed is safe, run the pipeline again to go on (see {plan.place.log})"
        ) from error
    if plan.every_seconds is None or not error.retryable:
        raise error

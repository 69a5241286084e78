"""Runs a daemon, from its start until a signal ends it.

The first SIGTERM or SIGINT ends it in order: a node hands over what it leads, then everything is closed, and
the exit code is 0. A second signal ends it at once, which loses nothing that was promised: a daemon may be
killed at any moment. systemd is notified when the daemon is ready and when it stops. Logs go to standard
error, as JSON lines or plain text.
"""

import asyncio
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from hawser.cluster.config import Config
from hawser.cluster.health import Health, Metric
from hawser.cluster.metrics import node_metrics, operator_metrics
from hawser.cluster.node.server import Node, NodeSettings
from hawser.cluster.operator.service import OperatorService, OperatorSettings
from hawser.cluster.stores import StoreUnavailable, open_store
from hawser.cluster.transport import Address, Unreachable, run
from hawser.errors import PermissionDenied, Unavailable, UsageError

__all__ = ["Daemon", "NodeDaemon", "OperatorDaemon", "node_settings", "run_daemon", "set_up_logging"]

_log = logging.getLogger("hawser.cluster.run")

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
# timeout(1) signals a process and then its group: that counts as one signal.
_SAME_SIGNAL_SECONDS: Final = 0.2
_STORE_PAUSE_SECONDS: Final = 1.0


class Daemon(Protocol):
    """A process that runs until it is told to stop."""

    async def start(self) -> str:
        """Returns when it serves, with a text that names it."""

    async def stop(self) -> None:
        """Stops in order, also after a start that failed or was interrupted."""

    def why_not_ready(self) -> str | None: ...

    def metrics(self) -> Iterable[Metric]: ...


class NodeDaemon:
    """The daemon of `hawser node`."""

    def __init__(self, config: Config) -> None:
        section = config.node
        if not section.id or not section.dir:
            raise UsageError(
                "a node needs an id and a directory: give --id and --dir, or [node] id and dir in --config"
            )
        self._listen = section.listen
        self._directory = Path(section.dir)
        try:
            self._node = Node(section.id, self._directory, node_settings(config))
        except PermissionError as error:
            raise PermissionDenied(f"{error.filename} cannot be written; who owns {section.dir}?") from error
        except OSError as error:
            raise UsageError(f"{section.dir} cannot be a node's directory: {error.strerror}") from error
        self._why_not_ready: str | None = "starting"
        _warn_if_exposed("node", self._listen)

    async def start(self) -> str:
        _allow_many_files()
        await self._node.start(self._listen)
        self._why_not_ready = None
        return f"{self._node.name} {self._node.address}"

    async def stop(self) -> None:
        self._why_not_ready = "stopping"
        await self._node.stop()

    def why_not_ready(self) -> str | None:
        if self._why_not_ready is None and not self._node.map.cluster:
            return "no operator has called yet; start one with `hawser operator`, or look at its log"
        return self._why_not_ready

    def metrics(self) -> Iterable[Metric]:
        return node_metrics(self._node, self._directory)


class OperatorDaemon:
    """The daemon of `hawser operator`. It waits for a store that does not answer yet."""

    def __init__(self, config: Config) -> None:
        section = config.operator
        if not section.metadata or not section.nodes:
            raise UsageError(
                "an operator needs a metadata store and nodes: give --metadata and --node ID=HOST:PORT, or "
                "[operator] metadata and nodes in --config"
            )
        settings = OperatorSettings(
            tick_seconds=section.tick_seconds, patience=section.patience, homes=section.homes
        )
        store = open_store(section.metadata)
        self._operator = OperatorService(section.name, store, section.nodes, settings)
        self._name = section.name
        self._why_not_ready: str | None = "starting"
        for address in section.nodes.values():
            _warn_if_exposed("operator", address)

    async def start(self) -> str:
        while True:
            try:
                await self._operator.start()
            except StoreUnavailable as error:
                self._why_not_ready = str(error)
                _log.warning("%s; retrying", error)
                await asyncio.sleep(_STORE_PAUSE_SECONDS)
            else:
                self._why_not_ready = None
                return f"{self._name} of cluster {self._operator.cluster}"

    async def stop(self) -> None:
        self._why_not_ready = "stopping"
        await self._operator.stop()

    def why_not_ready(self) -> str | None:
        if self._why_not_ready is None and not self._operator.alive:
            return "no node answers; are they running, and are their addresses right?"
        return self._why_not_ready

    def metrics(self) -> Iterable[Metric]:
        return operator_metrics(self._operator)


def node_settings(config: Config) -> NodeSettings:
    """The node's settings that the configuration gives; the others have their defaults."""
    section, usual = config.node, NodeSettings().replica
    return NodeSettings(
        tick_seconds=section.tick_seconds,
        drain_seconds=section.drain_seconds,
        observers=tuple(section.observers),
        staged_bytes=section.staged_bytes,
        replica=msgspec.structs.replace(
            usual,
            journal=msgspec.structs.replace(usual.journal, segment_bytes=section.segment_bytes),
            checkpoint_entries=section.checkpoint_entries,
        ),
    )


def run_daemon(make: Callable[[], Daemon], http: str, announce: Callable[[str], None]) -> None:
    """Runs a daemon until a signal ends it; `announce` is called once it serves."""
    run(_run(make, http, announce))


async def _run(make: Callable[[], Daemon], http: str, announce: Callable[[str], None]) -> None:
    asked_to_end = _watch_signals()
    daemon = make()
    health = Health(daemon.why_not_ready, daemon.metrics)
    try:
        if http:
            await health.start(http)
        starting = asyncio.ensure_future(daemon.start())
        ending = asyncio.ensure_future(asked_to_end.wait())
        await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            announce(starting.result())
            _tell_systemd("READY=1")
            await ending
        starting.cancel()
    except Unreachable as error:
        raise Unavailable(str(error)) from error
    finally:
        _tell_systemd("STOPPING=1")
        await daemon.stop()
        await health.stop()
    _log.info("stopped")


def _watch_signals() -> asyncio.Event:
    """Set by the first signal; the second one ends the process."""
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    first_at = 0.0

    def hear(number: signal.Signals) -> None:
        nonlocal first_at
        if asked_to_end.is_set():
            if loop.time() < first_at + _SAME_SIGNAL_SECONDS:
                return
            _log.warning("%s again: stopping at once", number.name)
            # Threads may be blocked in the disk.
            os._exit(128 + number)
        _log.info("%s: stopping; a second signal stops at once", number.name)
        first_at = loop.time()
        asked_to_end.set()

    for number in _ENDING:
        loop.add_signal_handler(number, hear, number)
    return asked_to_end


def _tell_systemd(state: str) -> None:
    """Notifies systemd, as sd_notify(3), if it started the process."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        try:
            notify.sendto(state.encode(), "\0" + place[1:] if place.startswith("@") else place)
        except OSError as error:
            _log.warning("systemd could not be notified of %s: %s", state, error.strerror)


def _allow_many_files() -> None:
    """Raises the soft limit of open files to the hard limit: a shard has several files, and each client a
    connection. The usual soft limit of 1024 is soon too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _log.warning("the limit of %d open files cannot be raised: %s", soft, error)


def _warn_if_exposed(who: str, address: str) -> None:
    host = Address.parse(address).host
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local:
        _log.warning(
            "the %s talks at %s without TLS: any process in that network can read and change everything. "
            "Use a network of its own, or a tunnel",
            who,
            address,
        )


_SECOND: Final = "%Y-%m-%dT%H:%M:%S"
_PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _JsonLines(logging.Formatter):
    """A JSON object per line: time, level, logger, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": f"{time.strftime(_SECOND, time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_logging(level: str, style: str) -> None:
    """Sets up the logs of a daemon's process: everything of `hawser`, and warnings of other packages."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if style == "json" else logging.Formatter(_PLAIN))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("hawser").setLevel(level.upper())
    # Python's own warnings, too, so that every line of the log has one format.
    logging.captureWarnings(True)

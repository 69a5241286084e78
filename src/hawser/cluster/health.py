"""The HTTP server of a daemon: `/livez`, `/readyz` and `/metrics`, one request per connection."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from hawser.cluster.transport import Address, Unreachable

__all__ = ["Health", "Metric", "exposition"]

_REQUEST_BYTES: Final = 8192
_REQUEST_SECONDS: Final = 5.0


class Metric(NamedTuple):
    """A metric: `name` in base units, ending in `_total` if it is a counter."""

    name: str
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def exposition(metrics: Iterable[Metric]) -> str:
    """The metrics in the text format of Prometheus, grouped by name."""
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, []).append(metric)
    lines = []
    for name, group in by_name.items():
        lines.append(f"# HELP {name} {group[0].help}")
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines.extend(f"{name}{_labels(metric)} {metric.value!r}" for metric in group)
    return "\n".join(lines) + "\n"


def _labels(metric: Metric) -> str:
    if not metric.labels:
        return ""
    texts = [f'{key}="{_escaped(value)}"' for key, value in metric.labels]
    return "{" + ",".join(texts) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Health:
    """Serves the pages at an address. `why_not_ready` gives a text while the daemon cannot do its work."""

    def __init__(
        self, why_not_ready: Callable[[], str | None], metrics: Callable[[], Iterable[Metric]]
    ) -> None:
        self._why_not_ready = why_not_ready
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> None:
        """Unreachable if the system refuses the address."""
        place = Address.parse(address)
        try:
            self._server = await asyncio.start_server(
                self._serve, place.host, place.port, limit=_REQUEST_BYTES
            )
        except OSError as error:
            raise Unreachable(f"cannot serve pages at {address}: {error.strerror or error}") from error

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                writer.write(self._answer(line.split()))
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass
        finally:
            writer.close()

    def _answer(self, words: list[bytes]) -> bytes:
        if len(words) < 2 or words[0] not in (b"GET", b"HEAD"):
            return _page(405, "only GET\n")
        path = words[1].split(b"?")[0]
        if path == b"/livez":
            return _page(200, "alive\n")
        if path == b"/readyz":
            reason = self._why_not_ready()
            return _page(200, "ready\n") if reason is None else _page(503, reason + "\n")
        if path == b"/metrics":
            return _page(200, exposition(self._metrics()), "text/plain; version=0.0.4; charset=utf-8")
        return _page(404, "there are /livez, /readyz and /metrics\n")


def _page(code: int, text: str, kind: str = "text/plain; charset=utf-8") -> bytes:
    body = text.encode()
    words = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}[code]
    head = f"HTTP/1.1 {code} {words}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body

"""The pages of a daemon: three of them, whatever is asked for, and figures that Prometheus can read."""

import asyncio
import re
import socket

import pytest

from hawser.cluster.health import Health, Metric, exposition
from hawser.cluster.transport import Unreachable
from tests.support.links import run

_LINE = re.compile(r'[a-z_]+(\{[a-z_]+="([^"\\\n]|\\.)*"(,[a-z_]+="([^"\\\n]|\\.)*")*\})? -?[0-9.e+]+')


class _Pages:
    """A server of pages, and what it answers to bytes."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.health = Health(lambda: self.reason, lambda: [Metric("hawser_shards", "Shards.", 3)])

    async def __aenter__(self) -> "_Pages":
        await self.health.start("127.0.0.1:0")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.health.stop()

    async def answer(self, request: bytes) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.health.port)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return (int(head.split()[1]) if head else 0), body.decode()

    async def get(self, path: str) -> tuple[int, str]:
        return await self.answer(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())


def test_each_page_is_there() -> None:
    async def work() -> None:
        async with _Pages() as pages:
            assert await pages.get("/livez") == (200, "alive\n")
            assert await pages.get("/readyz") == (200, "ready\n")
            assert await pages.get("/readyz?verbose=1") == (200, "ready\n")
            pages.reason = "no operator has called yet"
            assert await pages.get("/readyz") == (503, "no operator has called yet\n")
            assert await pages.get("/livez") == (200, "alive\n")
            code, text = await pages.get("/metrics")
            assert code == 200 and "hawser_shards 3\n" in text
            code, text = await pages.get("/")
            assert code == 404 and "/readyz" in text

    run(work())


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /livez HTTP/1.1\r\n\r\n",
        b"\xff\xfe\x00\r\n\r\n",
        b"x" * 100_000,
    ],
)
def test_no_request_ends_the_server(request_bytes: bytes) -> None:
    async def work() -> None:
        async with _Pages() as pages:
            try:
                code, _ = await pages.answer(request_bytes)
                assert code in (0, 405)
            except ConnectionError:
                # It hung up on what nobody wants to read to the end.
                pass
            assert await pages.get("/livez") == (200, "alive\n")

    run(work())


def test_an_address_that_is_taken_is_named() -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(Unreachable, match=address):
                await Health(lambda: None, list).start(address)

    run(work())


def test_figures_are_written_as_prometheus_reads_them() -> None:
    labels = (("shard", 'a"b\\c\nd'), ("node", "n1"))
    metrics = [
        Metric("hawser_syncs_total", "Syncs.", 12),
        Metric("hawser_shard_head", "Head.", 1 << 53, labels),
        Metric("hawser_seconds", "Seconds.", 0.125),
        Metric("hawser_shard_head", "Head.", 5, (("shard", "b"),)),
    ]
    lines = exposition(metrics).splitlines()
    figures = [line for line in lines if not line.startswith("#")]
    assert len(figures) == len(metrics)
    assert all(_LINE.fullmatch(line) for line in figures), figures
    assert "# TYPE hawser_syncs_total counter" in lines
    assert "# TYPE hawser_seconds gauge" in lines
    # No digit of a large figure is lost, and figures of one name stand together under one heading.
    assert figures[1].endswith(f" {1 << 53}") and figures[2] == 'hawser_shard_head{shard="b"} 5'
    assert sum(line.startswith("# TYPE hawser_shard_head") for line in lines) == 1

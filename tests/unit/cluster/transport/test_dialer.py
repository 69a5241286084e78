"""A dialer keeps one link to an address, through restarts of what is there, and says why it has none."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from hawser.cluster.transport import Dialer, LinkClosed, LinkSettings, Refused, Unreachable, dial, listen
from tests.support.links import CLIENT, LOOPBACK, NODE, PATIENT, Recorder, Silent, run, serving

LONG_SECONDS = 50
QUICK = msgspec.structs.replace(PATIENT, backoff_least_seconds=0.01, backoff_most_seconds=0.05)


def test_the_link_comes_back_after_restarts() -> None:
    async def scenario() -> None:
        here = Recorder()
        server = await listen(LOOPBACK, Recorder(), NODE, settings=PATIENT)
        dialer = Dialer(server.address, CLIENT, here, settings=QUICK)
        assert not dialer.tell(b"nobody there") and dialer.counters.tells_dropped == 1
        dialer.start()
        for turn in range(3):
            link = await dialer.up(LONG_SECONDS)
            assert dialer.link is link and dialer.trouble == ""
            assert await link.ask(b"%d" % turn, LONG_SECONDS) == b"%d" % turn
            await server.close("restart")
            await here.until(lambda turn=turn: len(here.reasons) == turn + 1)
            await link.wait_closed()
            server = await listen(server.address, Recorder(), NODE, settings=PATIENT)
        assert all("restart" in reason for reason in here.reasons)
        await dialer.up(LONG_SECONDS)
        assert len(here.links) == 4
        await dialer.close()
        assert dialer.link is None and len(here.reasons) == 4
        await server.close()

    run(scenario())


def test_a_kill_of_the_other_side_ends_asks_and_the_next_link_takes_new_ones() -> None:
    async def scenario() -> None:
        there = Silent()
        async with serving(there) as server:
            dialer = Dialer(server.address, CLIENT, settings=QUICK)
            dialer.start()
            link = await dialer.up(LONG_SECONDS)
            asking = asyncio.create_task(link.ask(b"", LONG_SECONDS))
            await there.until(lambda: there.requests)
            server.links[0].abort("killed")
            with pytest.raises(LinkClosed):
                await asking
            assert await dialer.up(LONG_SECONDS) is not link
            await dialer.close()

    run(scenario())


def test_nobody_there() -> None:
    async def scenario() -> None:
        server = await listen(LOOPBACK, Recorder(), NODE)
        await server.close()
        dialer = Dialer(server.address, CLIENT, settings=QUICK)
        dialer.start()
        while dialer.attempts < 2:
            await asyncio.sleep(0.01)
        with pytest.raises(Unreachable, match=r"no link within 0\.2 s: .* cannot be reached"):
            await dialer.up(0.2)
        await dialer.close()

    run(scenario())


def test_a_name_that_cannot_be_one() -> None:
    async def scenario() -> None:
        with pytest.raises(Unreachable, match="cannot be reached"):
            await dial(f"{'x' * 70}.example:1", CLIENT)

    run(scenario())


def test_a_server_that_closes_takes_nobody_in() -> None:
    async def scenario() -> None:
        server = await listen(LOOPBACK, Recorder(), NODE, settings=PATIENT)
        late = server._make_link()
        await server.close()
        with pytest.raises(Refused, match="it is closing"):
            late._introduce()

    run(scenario())


def test_a_refused_dialer_goes_on_trying() -> None:
    async def scenario() -> None:
        async with serving(Recorder()) as server:
            stranger = msgspec.structs.replace(CLIENT, cluster="red")
            dialer = Dialer(server.address, lambda: stranger, settings=QUICK)
            dialer.start()
            while dialer.attempts < 2:
                await asyncio.sleep(0.01)
            with pytest.raises(Unreachable, match="refuses: node a belongs to cluster blue"):
                await dialer.up(0.2)
            stranger = CLIENT
            assert (await dialer.up(LONG_SECONDS)).is_open
            await dialer.close()

    run(scenario())


def test_a_dialer_can_be_hurried() -> None:
    lazy = LinkSettings(backoff_least_seconds=1000, backoff_most_seconds=1000)

    async def scenario() -> None:
        here = Recorder()
        async with serving(Recorder()) as server:
            dialer = Dialer(server.address, CLIENT, here, settings=lazy)
            dialer.start()
            link = await dialer.up(LONG_SECONDS)
            server.links[0].abort("killed")
            await link.wait_closed()
            while dialer.link is not None:
                await asyncio.sleep(0)
            dialer.hurry()
            assert await dialer.up(LONG_SECONDS) is not link
            await dialer.close()

    run(scenario())


def test_closing_while_it_dials() -> None:
    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dialed.set()
            await reader.read()
            writer.close()
            gone.set()

        dialed, gone = asyncio.Event(), asyncio.Event()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        dialer = Dialer(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", CLIENT, settings=PATIENT)
        dialer.start()
        await dialed.wait()
        await dialer.close()
        await gone.wait()
        server.close()

    run(scenario())


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl to make a certificate")
    files = (tmp_path / "certificate.pem", tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True)
    return files


def test_links_over_tls(certificate: tuple[Path, Path]) -> None:
    serving_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving_tls.load_cert_chain(*certificate)
    trusting = ssl.create_default_context(cafile=certificate[0])

    async def scenario() -> None:
        there = Recorder()
        server = await listen("localhost:0", there, NODE, serving_tls, settings=PATIENT)
        address = f"localhost:{server.address.rpartition(':')[2]}"
        link = await dial(address, CLIENT, tls=trusting, settings=PATIENT)
        body = bytes(range(256)) * 20_000
        assert await link.ask(body, LONG_SECONDS) == body
        answers = await asyncio.gather(*(link.ask(b"%d" % n, LONG_SECONDS) for n in range(500)))
        assert answers == [b"%d" % number for number in range(500)]
        with pytest.raises(Unreachable, match="cannot be trusted or does not speak TLS"):
            await dial(address, CLIENT, tls=ssl.create_default_context(), settings=PATIENT)
        await link.close("done")
        await there.until(lambda: there.reasons)
        assert "done" in there.reasons[0]
        await server.close()

    run(scenario())

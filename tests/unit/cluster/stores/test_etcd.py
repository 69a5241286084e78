"""What the etcd store makes of answers that a sound etcd does not give."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest

from hawser.cluster.stores import StoreUnavailable, open_store
from tests.contract.store_attacks import unavailable

Answer = tuple[int, bytes]
NOTHING = (200, b'{"header": {"revision": "5"}}')
SUCCESS = (200, b'{"header": {"revision": "5"}, "succeeded": true}')


class Gateway(ThreadingHTTPServer):
    """Gives the same answer to everything, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self, answer: Answer | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.asked: list[tuple[str, dict[str, object]]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Gateway)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, msgspec.json.decode(body)))
        if self.server.answer is None:
            # Hang up without a word.
            self.close_connection = True
            return
        status, data = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """Nobody reads it."""


@contextmanager
def gateway(answer: Answer | None) -> Iterator[Gateway]:
    server = Gateway(answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refusal(code: int) -> bytes:
    return msgspec.json.encode({"error": "etcdserver: said so", "code": code})


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, "unknown"),
        ((200, b"not JSON"), "unknown"),
        ((200, b"[]"), "unknown"),
        ((200, b'{"succeeded": true}'), "unknown"),
        ((200, b'{"header": {"revision": "x"}, "succeeded": true}'), "unknown"),
        ((200, b'{"header": {"revision": "5"}}'), "unknown"),
        ((500, refusal(13)), "unknown"),
        ((502, b"<html>a proxy</html>"), "unknown"),
        ((503, refusal(14)), "unknown"),
        ((504, refusal(4)), "unknown"),
        ((400, refusal(3)), "none"),
        ((403, refusal(7)), "none"),
        ((429, refusal(8)), "none"),
        ((401, refusal(16)), "none"),
    ],
)
def test_a_write_without_a_proper_answer(answer: Answer | None, outcome: str) -> None:
    with gateway(answer) as server:
        store = open_store(f"etcd://{server.address}", 30)
        error = unavailable(lambda: store.put("key", b"data", None))
        assert error.outcome == outcome, str(error)
        assert ("reading will tell" in str(error)) == (outcome == "unknown")
        assert server.address in str(error)
        if answer is not None and b"said so" in answer[1]:
            assert "etcdserver: said so" in str(error)
        store.close()


@pytest.mark.parametrize(
    "answer", [b"{}", b"[]", b"{", b'{"header": {"revision": "5"}, "kvs": [{"key": "!"}]}']
)
def test_what_is_no_etcd_is_not_taken_for_an_empty_one(answer: bytes) -> None:
    with gateway((200, answer)) as server:
        store = open_store(f"etcd://{server.address}", 30)
        assert server.address in str(unavailable(lambda: store.get("key")))
        assert server.address in str(unavailable(lambda: store.list("")))
        store.close()


def test_a_write_is_sent_once_and_a_read_to_everybody() -> None:
    with gateway(None) as first, gateway(None) as second:
        store = open_store(f"etcd://{first.address},{second.address}", 30)
        unavailable(lambda: store.put("key", b"data", None))
        assert (len(first.asked), len(second.asked)) == (1, 0)
        unavailable(lambda: store.get("key"))
        assert (len(first.asked), len(second.asked)) == (2, 1)
        store.close()


def test_the_next_call_begins_where_the_last_did_not_fail() -> None:
    with gateway((503, refusal(14))) as bad, gateway(SUCCESS) as good:
        store = open_store(f"etcd://{bad.address},{good.address}", 30)
        assert unavailable(lambda: store.put("key", b"data", None)).outcome == "unknown"
        for _ in range(3):
            store.put("key", b"data", None)
        assert (len(bad.asked), len(good.asked)) == (1, 3)
        store.close()


def test_a_write_goes_on_after_a_refusal() -> None:
    with gateway((429, refusal(8))) as full, gateway(SUCCESS) as good:
        store = open_store(f"etcd://{full.address},{good.address}", 30)
        store.put("key", b"data", None)
        assert len(good.asked) == 1
        store.close()


def test_reads_are_linearizable_and_keys_are_below_the_prefix() -> None:
    with gateway(NOTHING) as server:
        store = open_store(f"etcd://{server.address}/p", 30)
        calls: list[Callable[[], object]] = [lambda: store.get("key"), lambda: store.list("")]
        for call in calls:
            call()
        assert [path for path, _ in server.asked] == ["/v3/kv/range", "/v3/kv/range"]
        assert not any(query.get("serializable") for _, query in server.asked)
        assert server.asked[0][1]["key"] == "cC8va2V5"
        assert (server.asked[1][1]["key"], server.asked[1][1]["range_end"]) == ("cC8v", "cC8w")
        store.close()


def test_no_proxy_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    with gateway(NOTHING) as server, gateway(NOTHING) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
        monkeypatch.setenv("no_proxy", "")
        store = open_store(f"etcd://{server.address}", 30)
        assert store.get("key") is None
        assert (len(server.asked), len(proxy.asked)) == (1, 0)
        store.close()


def test_an_unknown_host_is_named() -> None:
    store = open_store("etcd://no-such-host.invalid:2379", 30)
    with pytest.raises(StoreUnavailable, match="no-such-host") as caught:
        store.put("key", b"data", None)
    assert caught.value.outcome == "none"
    store.close()

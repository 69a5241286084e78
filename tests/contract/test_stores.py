"""What operators may rely on, of the metadata store in SQLite and of the one in etcd alike."""

import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hawser import errors
from hawser.cluster.stores import Conflict, Store, Value, open_store
from hawser.cluster.stores.store import MAX_DATA_BYTES, MAX_KEY_BYTES
from tests.contract.store_attacks import (
    Careless,
    Hasty,
    kill_writers,
    race_of_increments,
    unavailable,
)
from tests.contract.store_histories import Forgetful, judged, record_history
from tests.support.children import Channel, Child
from tests.support.etcd import EtcdServer, etcd_server, free_ports

Record = Callable[[str, object], None]
ODD_KEYS = [
    " ",
    "/",
    "//a",
    "a b",
    "a\nb",
    "a\0b",
    "\0",
    "%2F%",
    "_%",
    "'; DROP TABLE entries; --",
    "ключ",
    "\U0010ffff",
    "x" * MAX_KEY_BYTES,
]


@pytest.fixture(scope="module")
def server(module_path: Path) -> Iterator[EtcdServer]:
    with etcd_server(module_path) as started:
        yield started


@pytest.fixture(params=["sqlite", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that nobody else has."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'metadata.db'}"
    shared: EtcdServer = request.getfixturevalue("server")
    return f"{shared.url}/{uuid.uuid4()}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


def written(result: Value | Conflict) -> Value:
    assert isinstance(result, Value), f"it was not written: {result}"
    return result


def test_nothing_is_there_at_first(store: Store) -> None:
    assert store.get("key") is None
    assert store.list("") == {}


def test_what_was_written_is_read(store: Store) -> None:
    value = written(store.put("key", b"data", None))
    assert value.data == b"data"
    assert store.get("key") == value


def test_a_new_key_must_be_new(store: Store) -> None:
    first = written(store.put("key", b"first", None))
    assert store.put("key", b"second", None) == Conflict(first)
    assert store.get("key") == first


def test_a_write_replaces_the_version_that_it_names(store: Store) -> None:
    first = written(store.put("key", b"first", None))
    second = written(store.put("key", b"second", first.version))
    assert second.version > first.version
    assert store.put("key", b"third", first.version) == Conflict(second)
    assert store.put("key", b"third", second.version + 1) == Conflict(second)
    assert store.get("key") == second


def test_nothing_cannot_be_replaced(store: Store) -> None:
    assert store.put("key", b"data", 7) == Conflict(None)
    assert store.get("key") is None


def test_the_same_bytes_again_are_a_new_version(store: Store) -> None:
    first = written(store.put("key", b"data", None))
    assert written(store.put("key", b"data", first.version)).version > first.version


def test_a_key_does_not_conflict_with_another(store: Store) -> None:
    first = written(store.put("a", b"1", None))
    written(store.put("b", b"2", None))
    written(store.put("a", b"3", first.version))


def test_deletion_names_its_version_too(store: Store) -> None:
    first = written(store.put("key", b"first", None))
    second = written(store.put("key", b"second", first.version))
    assert not store.delete("key", first.version)
    assert store.get("key") == second
    assert store.delete("key", second.version)
    assert store.get("key") is None
    assert not store.delete("key", second.version)
    assert not store.delete("never there", 1)


def test_a_version_is_not_used_again_after_a_deletion(store: Store) -> None:
    versions = []
    for _ in range(5):
        versions.append(written(store.put("key", b"data", None)).version)
        assert store.delete("key", versions[-1])
    assert versions == sorted(set(versions))
    assert store.put("key", b"late", versions[-1]) == Conflict(None)


def test_a_version_is_not_used_again_after_a_restart(url: str) -> None:
    store = open_store(url)
    first = written(store.put("key", b"data", None))
    assert store.delete("key", first.version)
    store.close()
    store = open_store(url)
    assert written(store.put("key", b"data", None)).version > first.version
    store.close()


def test_a_list_is_by_prefix_and_in_order(store: Store) -> None:
    keys = ["a", "a/", "a/1", "a/10", "a/2", "a/\U0010ffff", "a0", "b", "Ä"]
    values = {key: written(store.put(key, key.encode(), None)) for key in reversed(keys)}
    assert list(store.list("a/")) == ["a/", "a/1", "a/10", "a/2", "a/\U0010ffff"]
    assert store.list("a/1") == {key: values[key] for key in ("a/1", "a/10")}
    assert list(store.list("")) == keys
    assert store.list("c") == {}


def test_clusters_of_nested_prefixes_do_not_see_each_other(server: EtcdServer) -> None:
    """With one slash behind a prefix, the keys of a cluster `a/shards` were shards of the cluster `a`."""
    outer = f"{server.url}/{uuid.uuid4()}"
    stores = {name: open_store(f"{outer}{name}") for name in ("", "/shards", "/shards/x")}
    for name, store in stores.items():
        written(store.put("shards/key", name.encode(), None))
    for name, store in stores.items():
        for prefix in "", "shards/":
            assert {key: value.data for key, value in store.list(prefix).items()} == {
                "shards/key": name.encode()
            }
        store.close()


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys(store: Store, key: str) -> None:
    value = written(store.put(key, b"data", None))
    assert store.get(key) == value
    assert store.list(key) == store.list("") == {key: value}
    assert store.delete(key, value.version)
    assert store.list("") == {}


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY_BYTES + 1), "\ud800"])
def test_what_cannot_be_a_key(store: Store, key: str) -> None:
    with pytest.raises(errors.UsageError, match="key"):
        store.put(key, b"data", None)
    with pytest.raises(errors.UsageError, match="key"):
        store.get(key)


def test_data_of_any_size_up_to_the_largest(store: Store) -> None:
    largest = bytes(range(256)) * (MAX_DATA_BYTES // 256)
    assert written(store.put("empty", b"", None)) == store.get("empty")
    written(store.put("largest", largest, None))
    kept = store.get("largest")
    assert kept is not None and kept.data == largest
    with pytest.raises(errors.UsageError, match="too many"):
        store.put("larger", largest + b"x", None)
    assert list(store.list("")) == ["empty", "largest"]


def test_a_closed_store_says_so(url: str) -> None:
    store = open_store(url)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.get("key"),
        lambda: store.list(""),
        lambda: store.put("key", b"data", None),
        lambda: store.delete("key", 1),
    ]
    for call in calls:
        with pytest.raises(errors.Closed):
            call()


def test_two_stores_see_each_other(url: str) -> None:
    ours, theirs = open_store(url), open_store(url)
    first = written(ours.put("key", b"ours", None))
    assert theirs.get("key") == first
    second = written(theirs.put("key", b"theirs", first.version))
    assert ours.put("key", b"ours again", first.version) == Conflict(second)
    ours.close()
    theirs.close()


def test_of_threads_that_replace_one_version_one_wins(store: Store) -> None:
    rounds, contestants = 20, 6
    version = written(store.put("key", b"", None)).version
    for _ in range(rounds):
        start = threading.Barrier(contestants)
        results: list[Value | Conflict] = []

        def contend(name: int, start: threading.Barrier = start, expected: int = version) -> None:
            start.wait()
            results.append(store.put("key", b"%d" % name, expected))  # noqa: B023

        threads = [threading.Thread(target=contend, args=(name,)) for name in range(contestants)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [result for result in results if isinstance(result, Value)]
        assert len(winners) == 1 and len(results) == contestants
        assert all(result.current == winners[0] for result in results if isinstance(result, Conflict))
        version = winners[0].version


def test_processes_that_create_one_key_at_once(url: str) -> None:
    def create(channel: Channel) -> None:
        channel.hear()
        store = open_store(url, 60)
        channel.tell(type(store.put("key", b"data", None)).__name__)

    children = [Child(create) for _ in range(6)]
    for child in children:
        child.tell("go")
    assert sorted(child.hear() for child in children) == ["Conflict"] * 5 + ["Value"]
    for child in children:
        child.join()
        child.close()


def test_no_increment_is_lost(url: str, record_property: Record) -> None:
    for name, figure in race_of_increments(url, writers=4, increments=500).items():
        record_property(name, figure)


def test_lost_increments_would_be_noticed(url: str) -> None:
    with pytest.raises(AssertionError, match="increments were lost"):
        race_of_increments(url, writers=4, increments=300, client=Careless)


def test_a_killed_writer_leaves_the_old_value_or_the_new(url: str, record_property: Record) -> None:
    for name, figure in kill_writers(url, kills=60, seed=1).items():
        record_property(name, figure)


def test_a_lost_write_would_be_noticed(url: str) -> None:
    with pytest.raises(AssertionError, match="said"):
        kill_writers(url, kills=30, seed=1, client=Hasty)


@pytest.fixture
def histories(tmp_path: Path) -> Path:
    directory = tmp_path / "histories"
    directory.mkdir()
    return directory


def test_histories_are_linearizable(url: str, histories: Path, record_property: Record) -> None:
    for name, figure in judged(record_history(url, histories)).items():
        record_property(name, figure)


def test_reads_from_a_replica_that_is_behind_would_be_noticed(url: str, histories: Path) -> None:
    with pytest.raises(AssertionError, match="not linearizable"):
        judged(record_history(url, histories, client=Forgetful, count=40))


@pytest.mark.soak
def test_soak(url: str, soak_seconds: float, record_property: Record) -> None:
    import time

    deadline = time.monotonic() + soak_seconds
    seed = increments = 0
    while time.monotonic() < deadline:
        seed += 1
        kill_writers(url, kills=20, seed=seed)
        increments += race_of_increments(f"{url}{seed}", writers=4, increments=200)["increments"]
    record_property("kills", 20 * seed)
    record_property("increments", increments)


def test_an_etcd_that_is_not_there() -> None:
    store = open_store("etcd://127.0.0.1:{},127.0.0.1:{}".format(*free_ports(2)), 2)
    assert "refused" in str(unavailable(lambda: store.get("key")))
    error = unavailable(lambda: store.put("key", b"data", None))
    assert error.outcome == "none" and error.retryable
    assert str(error).count("refused") == 2
    assert unavailable(lambda: store.delete("key", 1)).outcome == "none"
    store.close()


def test_an_etcd_that_stands_still(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        store = open_store(server.url, 60)
        first = written(store.put("key", b"first", None))
        store.close()
        server.stop()
        store = open_store(server.url, 0.5)
        assert unavailable(lambda: store.get("key")).outcome == "none"
        error = unavailable(lambda: store.put("key", b"second", first.version))
        assert error.outcome == "unknown" and "reading will tell" in str(error)
        server.resume()
        store.close()
        store = open_store(server.url, 60)
        current = store.get("key")
        assert current is not None and current.data in (b"first", b"second")
        store.close()


def test_the_next_endpoint_is_tried(server: EtcdServer) -> None:
    (dead,) = free_ports(1)
    url = server.url.replace("//", f"//127.0.0.1:{dead},") + f"/{uuid.uuid4()}"
    store = open_store(url, 20)
    value = written(store.put("key", b"data", None))
    assert store.get("key") == value
    store.close()


def test_histories_across_a_restart_of_etcd(tmp_path: Path, histories: Path, record_property: Record) -> None:
    with etcd_server(tmp_path) as server:

        def disturb() -> None:
            for _ in range(3):
                server.end()
                server.start()

        for name, figure in judged(record_history(server.url, histories, disturb, count=200)).items():
            record_property(name, figure)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_an_etcd_started_again(tmp_path: Path, ending: signal.Signals) -> None:
    with etcd_server(tmp_path) as server:
        store = open_store(server.url)
        first = written(store.put("key", b"first", None))
        server.end(ending)
        assert unavailable(lambda: store.put("key", b"second", first.version)).outcome == "none"
        server.start()
        assert store.get("key") == first
        written(store.put("key", b"second", first.version))
        store.close()

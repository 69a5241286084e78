"""The metadata store's URLs, its SQLite file, and the shards in it."""

import os
import signal
import sqlite3
import stat
import sys
from pathlib import Path

import pytest

from hawser import errors
from hawser.cluster.stores import (
    StoreUnavailable,
    Value,
    delete_shard,
    list_shards,
    load_shard,
    open_store,
    store_shard,
)
from hawser.cluster.stores.sqlite import FORMAT_VERSION, SqliteStore
from hawser.log.entry import EntryId
from hawser.log.protocol.messages import Change, ChangeKind
from hawser.log.protocol.metadata import Metadata, Phase, Status

MEMBERS = ("n1.a", "n2.a", "n3.a")
SHARD = "topic:orders:0"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.mark.parametrize(
    "url", ["", "sqlite", "sqlite:", "etcd", "etcd:localhost:1", "redis://h:1", "/a/file"]
)
def test_a_bad_url_names_the_good_ones(url: str) -> None:
    with pytest.raises(errors.UsageError, match=r"sqlite:PATH or etcd://HOST:PORT"):
        open_store(url)


@pytest.mark.parametrize(
    "rest",
    ["", "host", "host:", "host:x", "host:0", "host:70000", "a:1,", ":1", "user@host:1", "a:1?b=c", "a b:"],
)
def test_a_bad_etcd_url_says_what_is_wrong(rest: str) -> None:
    with pytest.raises(errors.UsageError, match=r"etcd://HOST:PORT\[,HOST:PORT...\]"):
        open_store(f"etcd://{rest}")


def test_endpoints_and_prefix() -> None:
    from hawser.cluster.stores.etcd import parse_endpoints

    assert parse_endpoints("etcd://h:1") == ([("h", 1)], "hawser//")
    assert parse_endpoints("etcd://h:1,[::1]:2/") == ([("h", 1), ("::1", 2)], "hawser//")
    assert parse_endpoints("etcd://h:1/a/b/") == ([("h", 1)], "a/b//")


def test_etcd_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hawser.cluster.stores.etcd", raising=False)
    monkeypatch.setitem(sys.modules, "etcd3gw.client", None)
    with pytest.raises(errors.UsageError, match=r"hawser-bus\[etcd\]"):
        open_store("etcd://127.0.0.1:1")


@pytest.mark.parametrize("slashes", ["", "//"])
def test_an_absolute_path(path: Path, slashes: str) -> None:
    open_store(f"sqlite:{slashes}{path}").close()
    assert path.exists()


def test_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:here.db")
    monkeypatch.chdir("/")
    assert isinstance(store.put("key", b"", None), Value)
    store.close()
    assert (tmp_path / "here.db").exists()


def test_two_slashes_are_a_mistake() -> None:
    with pytest.raises(errors.UsageError, match="sqlite:PATH"):
        open_store("sqlite://here.db")


def test_the_files_are_for_their_owner_only(path: Path) -> None:
    mask = os.umask(0)
    try:
        store = SqliteStore(path)
        store.put("key", b"data", None)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        store.close()
    finally:
        os.umask(mask)
    assert modes == {"metadata.db": 0o600, "metadata.db-journal": 0o600}


def test_writes_are_synced_and_there_is_no_log(path: Path) -> None:
    store = SqliteStore(path)
    connection = store._connection
    assert connection is not None
    assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    store.close()


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound, match="there is no directory"):
        SqliteStore(tmp_path / "missing" / "metadata.db")


def test_a_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open"):
        SqliteStore(tmp_path)


def test_a_file_of_something_else(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 100)
    with pytest.raises(errors.Corrupt, match="no SQLite file"):
        SqliteStore(path)


def test_a_database_of_another_program(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (a)")
    connection.commit()
    connection.close()
    with pytest.raises(errors.SettingsMismatch, match="of another program"):
        SqliteStore(path)


def test_a_later_format_is_refused(path: Path) -> None:
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION + 1}")
    connection.close()
    with pytest.raises(errors.SettingsMismatch, match=f"has format {FORMAT_VERSION + 1}"):
        SqliteStore(path)


def test_a_damaged_page_is_not_served(path: Path) -> None:
    store = SqliteStore(path)
    for number in range(100):
        store.put(f"key{number}", bytes(1000), None)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    store = SqliteStore(path)
    with pytest.raises(errors.Corrupt, match="damaged"):
        store.list("")
    store.close()


def test_a_store_that_somebody_holds(path: Path) -> None:
    store = SqliteStore(path, timeout_seconds=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    for call in (
        lambda: store.put("key", b"data", None),
        lambda: store.get("key"),
        lambda: store.delete("key", 1),
    ):
        with pytest.raises(StoreUnavailable, match="held by another process") as caught:
            call()
        assert caught.value.outcome == "none" and caught.value.retryable
    other.execute("ROLLBACK")
    assert isinstance(store.put("key", b"data", None), Value)
    store.close()
    other.close()


def test_a_reader_that_stays_keeps_a_writer_out_and_nothing_is_half_done(path: Path) -> None:
    store = SqliteStore(path, timeout_seconds=0.05)
    first = store.put("key", b"first", None)
    assert isinstance(first, Value)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT * FROM entries").fetchall()
    with pytest.raises(StoreUnavailable) as caught:
        store.put("key", b"second", first.version)
    assert caught.value.outcome == "none"
    other.execute("COMMIT")
    assert store.get("key") == first
    assert isinstance(store.put("key", b"second", first.version), Value)
    store.close()
    other.close()


def test_no_room_for_a_write(path: Path) -> None:
    import resource

    store = SqliteStore(path)
    first = store.put("key", b"first", None)
    assert isinstance(first, Value)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 8192, limits[1]))
    try:
        with pytest.raises(StoreUnavailable, match="Check the disk"):
            store.put("key", bytes(100_000), first.version)
        assert store.get("key") == first
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert isinstance(store.put("key", bytes(100_000), first.version), Value)
    store.close()


def test_a_shard_is_kept_whole(path: Path) -> None:
    store = SqliteStore(path)
    assert load_shard(store, SHARD) is None
    metadata = Metadata(
        version=1,
        epoch=7,
        status=Status.RECONFIGURATION,
        members=MEMBERS,
        copies=3,
        writer="o1#5",
        leader=MEMBERS[1],
        change=Change(ChangeKind.SWAP, new="n4.a", old="n1.a"),
        phase=Phase.COMMIT,
        new_head=EntryId(7, 12),
        removed=("n9.a",),
    )
    stored = store_shard(store, SHARD, metadata, None)
    assert stored is not None and stored.metadata == metadata
    assert load_shard(store, SHARD) == stored
    assert list_shards(store) == {SHARD: stored}
    assert delete_shard(store, SHARD, stored)
    assert load_shard(store, SHARD) is None
    store.close()


def test_of_two_operators_one_writes_the_next_version(path: Path) -> None:
    store = SqliteStore(path)
    first = store_shard(store, SHARD, Metadata.initial(MEMBERS), None)
    assert first is not None
    ours = first.metadata.next(epoch=1, writer="ours")
    theirs = first.metadata.next(epoch=1, writer="theirs")
    second = store_shard(store, SHARD, theirs, first)
    assert second is not None and second.metadata == theirs
    assert store_shard(store, SHARD, ours, first) == second
    assert store_shard(store, SHARD, Metadata.initial(MEMBERS), None) == second
    with pytest.raises(AssertionError):
        store_shard(store, SHARD, theirs.next().next(), second)
    store.close()


def test_an_operator_of_a_deleted_shard_cannot_write_into_the_next_of_its_name(path: Path) -> None:
    store = SqliteStore(path)
    initial = Metadata.initial(MEMBERS)
    old = store_shard(store, SHARD, initial, None)
    assert old is not None and delete_shard(store, SHARD, old)
    late = initial.next(epoch=9)
    assert store_shard(store, SHARD, late, old) is None
    new = store_shard(store, SHARD, initial, None)
    assert store_shard(store, SHARD, late, old) == new
    assert not delete_shard(store, SHARD, old)
    store.close()


def test_metadata_that_cannot_be_read_names_the_shard(path: Path) -> None:
    store = SqliteStore(path)
    store.put(f"shards/{SHARD}", b'{"version": "many"}', None)
    with pytest.raises(errors.Corrupt, match=SHARD):
        load_shard(store, SHARD)
    other = store_shard(store, "other@1/0", Metadata.initial(MEMBERS), None)
    found = list_shards(store)
    assert found.keys() == {SHARD, "other@1/0"} and found["other@1/0"] == other
    assert isinstance(found[SHARD], errors.Corrupt)
    store.close()

"""What a journal may rely on, of the real disk and of the simulated one alike."""

import errno
import os
import resource
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from hawser.cluster.disk import Disk
from hawser.log.journal.storage import Storage, StorageFailed, StorageFull
from hawser.testing.disk import Fate, SimDisk

MOST_BYTES = 1 << 20


@pytest.fixture(params=["real", "simulated"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "simulated":
        yield SimDisk()
        return
    disk = Disk(tmp_path / "journal")
    yield disk
    disk.close()


def test_an_empty_directory_has_no_names(storage: Storage) -> None:
    assert storage.names() == []


def test_a_new_file_is_zeros(storage: Storage) -> None:
    storage.create("file", 5000)
    assert storage.size("file") == 5000
    assert storage.read("file", 0, 5000) == bytes(5000)
    assert storage.names() == ["file"]


def test_an_empty_file(storage: Storage) -> None:
    storage.create("file", 0)
    assert storage.size("file") == 0
    assert storage.read("file", 0, 10) == b""


def test_names_are_sorted(storage: Storage) -> None:
    for name in ("b", "c", "a"):
        storage.create(name, 1)
    assert storage.names() == ["a", "b", "c"]


def test_a_name_is_taken_once(storage: Storage) -> None:
    storage.create("file", 3)
    storage.write("file", 0, b"old")
    with pytest.raises(FileExistsError):
        storage.create("file", 5)
    assert storage.read("file", 0, 9) == b"old"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_what_is_written_is_read(storage: Storage, kind: type) -> None:
    storage.create("file", 100)
    storage.write("file", 10, kind(b"first"))
    storage.write("file", 13, kind(b"second"))
    assert storage.read("file", 9, 11) == b"\0firsecond\0"


def test_nothing_is_read_behind_the_end(storage: Storage) -> None:
    storage.create("file", 10)
    assert len(storage.read("file", 8, 100)) == 2
    assert storage.read("file", 10, 1) == b""
    assert storage.read("file", 5000, 1) == b""


def test_what_was_read_does_not_change(storage: Storage) -> None:
    storage.create("file", 4)
    before = storage.read("file", 0, 4)
    storage.write("file", 0, b"new.")
    assert before == bytes(4)


def test_cutting_and_filling_leaves_zeros(storage: Storage) -> None:
    storage.create("file", 10)
    storage.write("file", 0, b"0123456789")
    storage.truncate("file", 4)
    assert (storage.size("file"), storage.read("file", 0, 10)) == (4, b"0123")
    storage.truncate("file", 8)
    assert storage.read("file", 0, 10) == b"0123\0\0\0\0"


def test_a_new_name_replaces_the_old_file(storage: Storage) -> None:
    storage.create("new", 3)
    storage.write("new", 0, b"new")
    storage.create("old", 3)
    storage.rename("new", "old")
    assert storage.names() == ["old"]
    assert storage.read("old", 0, 3) == b"new"
    storage.write("old", 0, b"yet")
    storage.sync("old")
    assert storage.read("old", 0, 3) == b"yet"


def test_a_removed_file_is_gone(storage: Storage) -> None:
    storage.create("file", 3)
    storage.write("file", 0, b"old")
    storage.remove("file")
    assert storage.names() == []
    storage.create("file", 3)
    assert storage.read("file", 0, 3) == bytes(3)


@pytest.mark.parametrize("deed", ["size", "read", "write", "truncate", "sync", "rename", "remove"])
def test_a_file_that_is_not_there(storage: Storage, deed: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {
        "read": (0, 1), "write": (0, b""), "truncate": (1,), "rename": ("other",),
    }  # fmt: skip
    with pytest.raises(FileNotFoundError):
        getattr(storage, deed)("file", *arguments.get(deed, ()))


def test_syncing_changes_nothing_to_be_seen(storage: Storage) -> None:
    storage.create("file", 3)
    storage.write("file", 0, b"old")
    storage.sync("file")
    storage.sync("file")
    storage.sync_names()
    assert storage.read("file", 0, 3) == b"old"


@contextmanager
def no_room_beyond(storage: Storage, size: int) -> Iterator[None]:
    """Little room: for the real one, the largest file that the process may have."""
    if isinstance(storage, SimDisk):
        storage.capacity_bytes = size
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_for_a_new_file(storage: Storage) -> None:
    with no_room_beyond(storage, MOST_BYTES):
        with pytest.raises(StorageFull):
            storage.create("file", 2 * MOST_BYTES)
        assert storage.names() == []
        storage.create("file", MOST_BYTES // 2)
    assert storage.size("file") == MOST_BYTES // 2


def test_no_room_for_a_longer_file(storage: Storage) -> None:
    storage.create("file", 3)
    storage.write("file", 0, b"old")
    with no_room_beyond(storage, MOST_BYTES):
        with pytest.raises(StorageFull):
            storage.truncate("file", 2 * MOST_BYTES)
        assert storage.size("file") == 3
        storage.write("file", 0, b"new")
        storage.sync("file")
    assert storage.read("file", 0, 9) == b"new"


def test_after_a_failed_sync_all_fail(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.create("file", 3)
    storage.create("other", 3)
    if isinstance(storage, SimDisk):
        storage.fail_sync = True
    else:
        monkeypatch.setattr("os.fdatasync", failing_sync)
    with pytest.raises(StorageFailed):
        storage.sync("file")
    if isinstance(storage, SimDisk):
        storage.fail_sync = False
    else:
        monkeypatch.undo()
    for name in ("file", "other"):
        with pytest.raises(StorageFailed):
            storage.sync(name)
    with pytest.raises(StorageFailed):
        storage.sync_names()
    assert storage.read("file", 0, 3) == bytes(3)


def failing_sync(descriptor: int) -> None:
    raise OSError(5, "Input/output error")


# The real one alone.


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd"])
def test_no_name_leads_elsewhere(tmp_path: Path, name: str) -> None:
    disk = Disk(tmp_path)
    with pytest.raises(ValueError, match="not the name of a file"):
        disk.create(name, 1)
    disk.close()


def test_files_are_found_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.create("file", 4)
    disk.write("file", 0, b"here")
    disk.close()
    again = Disk(tmp_path)
    assert again.names() == ["file"]
    assert again.read("file", 0, 4) == b"here"
    again.close()


def test_many_files_need_few_descriptors(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    disk = Disk(tmp_path)
    for number in range(200):
        disk.create(f"file{number}", 10)
        disk.write(f"file{number}", 0, b"%d" % number)
    assert len(set(os.listdir("/proc/self/fd")) - before) < 100
    assert [disk.read(f"file{number}", 0, 10).rstrip(b"\0") for number in range(200)] == [
        b"%d" % number for number in range(200)
    ]
    for number in range(200):
        disk.sync(f"file{number}")
    disk.close()


def test_a_directory_has_one_user(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "a" / "b")
    with pytest.raises(StorageFailed, match="in use"):
        Disk(tmp_path / "a" / "b")
    disk.close()
    Disk(tmp_path / "a" / "b").close()


def test_room_is_really_reserved(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.create("file", MOST_BYTES)
    assert (tmp_path / "file").stat().st_blocks * 512 >= MOST_BYTES
    disk.close()


def test_folders_and_links_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    disk = Disk(tmp_path)
    assert disk.names() == []
    with pytest.raises(StorageFailed):
        disk.read("link", 0, 1)
    disk.close()


def test_a_sync_elsewhere_beside_writing(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.create("file", 1 << 16)
    sync = disk.begin_sync(["file"])
    descriptors = sync.descriptors * 20
    thread = threading.Thread(target=lambda: deque(map(os.fdatasync, descriptors), maxlen=0))
    thread.start()
    for place in range(1 << 10):
        disk.write("file", place * 64, bytes([place % 256]) * 64)
    thread.join()
    disk.end_sync(sync, 0, 0.1)
    expected = b"".join(bytes([place % 256]) * 64 for place in range(1 << 10))
    assert disk.read("file", 0, 1 << 16) == expected
    disk.close()


def test_a_sync_elsewhere_goes_on_beside_everything_else(tmp_path: Path) -> None:
    """Its files are renamed, removed and pushed out meanwhile: the descriptors stay theirs until it ends."""
    disk = Disk(tmp_path)
    for name in ("renamed", "removed", "pushed out"):
        disk.create(name, 10)
    sync = disk.begin_sync(["renamed", "removed", "pushed out"])
    inodes = [os.fstat(each).st_ino for each in sync.descriptors]
    disk.rename("renamed", "other")
    disk.remove("removed")
    for number in range(20):
        disk.create(f"file{number}", 10)
    assert [os.fstat(each).st_ino for each in sync.descriptors] == inodes
    descriptors = sync.descriptors
    disk.end_sync(sync, 0, 0.1)
    for each in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(each)
    disk.close()


def test_after_a_sync_elsewhere_has_failed_all_fail(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.create("file", 10)
    with pytest.raises(StorageFailed, match=r"syncing file failed: Input/output error\. Check the disk"):
        disk.end_sync(disk.begin_sync(["file"]), errno.EIO, 0.1)
    with pytest.raises(StorageFailed, match="is not synced any more since then"):
        disk.begin_sync(["file"])
    with pytest.raises(StorageFailed, match="is not synced any more since then"):
        disk.sync("file")
    disk.close()


def test_a_sync_elsewhere_of_what_is_not_there_leaves_nothing_open(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.create("file", 10)
    with pytest.raises(FileNotFoundError):
        disk.begin_sync(["file", "missing"])
    disk.remove("file")
    assert not any(
        os.path.realpath(f"/proc/self/fd/{each}").startswith(str(tmp_path / "file"))
        for each in open_descriptors()
    )
    disk.close()


def open_descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


# The simulated one alone.


def test_synced_is_there_and_unsynced_may_be() -> None:
    """Over many crashes every fate is met, and none that is not allowed."""
    found = set()
    for seed in range(300):
        disk = SimDisk()
        disk.create("file", 4)
        disk.write("file", 0, b"safe")
        disk.sync("file")
        disk.sync_names()
        disk.write("file", 2, b"xx")
        disk.crash(Random(seed))
        found.add(disk.read("file", 0, 2))
        found.add(disk.read("file", 2, 2))
    assert b"sa" in found and {b"fe", b"xx", b"xe"} <= found
    assert len([each for each in found if each[:1] in b"sf"]) < 10


def test_names_come_and_go_by_chance_until_synced() -> None:
    outcomes = set()
    for seed in range(100):
        disk = SimDisk()
        disk.create("a", 1)
        disk.sync("a")
        disk.sync_names()
        disk.create("b", 1)
        disk.rename("a", "c")
        disk.crash(Random(seed))
        outcomes.add(tuple(disk.names()))
    assert outcomes == {("a",), ("a", "b"), ("c",), ("b", "c")}


def test_outcomes_are_all_of_them() -> None:
    disk = SimDisk()
    disk.create("file", 2)
    disk.sync("file")
    disk.sync_names()
    disk.write("file", 0, b"1")
    disk.write("file", 1, b"2")
    contents = [outcome.read("file", 0, 2) for outcome in disk.outcomes(Random(0))]
    assert len(contents) == 9
    assert {b"\0\0", b"1\0", b"\0002", b"12"} <= set(contents)
    assert disk.pending() == 2 and disk.read("file", 0, 2) == b"12"


def test_a_write_over_a_write_is_undone_in_order() -> None:
    disk = SimDisk()
    disk.create("file", 4)
    disk.sync("file")
    disk.sync_names()
    disk.write("file", 0, b"abcd")
    disk.write("file", 1, b"XY")
    disk.crash_with([Fate.LOST, Fate.KEPT], Random(0))
    assert disk.read("file", 0, 4) == b"\0XY\0"


def test_a_removed_file_may_come_back_whole() -> None:
    disk = SimDisk()
    disk.create("file", 4)
    disk.write("file", 0, b"here")
    disk.sync("file")
    disk.sync_names()
    disk.remove("file")
    disk.crash_with([Fate.LOST], Random(0))
    assert disk.read("file", 0, 4) == b"here"


def test_the_same_chance_gives_the_same_crash() -> None:
    def run(seed: int) -> dict[str, bytes]:
        disk = SimDisk()
        for number in range(5):
            disk.create(f"file{number}", 2000)
            disk.write(f"file{number}", 100, b"content" * 200)
        disk.crash(Random(seed))
        return {name: disk.read(name, 0, 2000) for name in disk.names()}

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]


def test_a_flip_changes_one_bit() -> None:
    disk = SimDisk()
    disk.create("file", 50)
    flip = disk.flip(Random(1))
    assert flip is not None
    assert disk.read("file", 0, 50) == bytes(flip.byte) + bytes([1 << flip.bit]) + bytes(49 - flip.byte)


def test_a_wiped_disk_is_empty_and_has_room() -> None:
    disk = SimDisk(capacity_bytes=10)
    disk.create("file", 10)
    disk.wipe()
    assert disk.names() == []
    disk.create("file", 10)

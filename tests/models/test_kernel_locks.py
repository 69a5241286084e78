"""What the design relies on in the kernel: open-file-description locks, anchors, unnamed files."""

import errno
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from . import kernel_locks
from .kernel_locks import NONE, PAGE, READ, WRITE, anchor, held, libc, lock, open_file, others_hold, unlock

BYTE = 3
FAR_BYTE = (1 << 62) + (1 << 61) - 2  # names are hashed to offsets far behind the end of the file


class Holder(NamedTuple):
    pid: int
    child: int


@pytest.fixture
def directory() -> Iterator[Path]:
    """On tmpfs where there is one, as regions are."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as path:
        yield Path(path)


@pytest.fixture
def path(directory: Path) -> str:
    file = directory / "region"
    file.write_bytes(bytes(PAGE))
    return str(file)


@contextmanager
def descriptions(path: str, count: int) -> Iterator[list[int]]:
    opened = [open_file(path) for _ in range(count)]
    try:
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def holder(path: str, *options: str, byte: int = BYTE) -> Iterator[Holder]:
    """A process that holds the byte; it and its child are ended at the end."""
    command = [sys.executable, "-S", kernel_locks.__file__, path, str(byte), *options]
    forks = "--child" in options and "stop" not in options
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2 if forks else 1)]
        child = int(next(line for line in lines if line.strip().isdigit()))
        try:
            yield Holder(process.pid, child)
        finally:
            for pid in (process.pid, child):
                if pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def kill(pid: int) -> None:
    """Returns when the process has let go of its files; it need not be reaped yet."""
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([watch], [], [])
    os.close(watch)


def test_a_description_never_conflicts_with_itself(path: str) -> None:
    with descriptions(path, 2) as (own, other):
        assert lock(own, BYTE)
        assert lock(own, BYTE)
        assert not others_hold(own, BYTE)
        assert not lock(other, BYTE)
        assert others_hold(other, BYTE)
        unlock(own, BYTE)
        assert not held(path, BYTE)


def test_use_byte_tells_whether_others_are_alive(path: str) -> None:
    with descriptions(path, 3) as (first, second, stranger):
        assert lock(first, BYTE, READ)
        assert not others_hold(first, BYTE)
        assert lock(second, BYTE, READ)
        assert others_hold(first, BYTE)
        assert others_hold(second, BYTE)
        assert others_hold(stranger, BYTE)
        assert not others_hold(stranger, BYTE, READ)
        unlock(second, BYTE)
        assert not others_hold(first, BYTE)


def test_asking_changes_nothing(path: str) -> None:
    with descriptions(path, 2) as (own, other):
        assert lock(own, BYTE, READ)
        assert not others_hold(own, BYTE)
        assert lock(other, BYTE, READ)
        assert others_hold(own, BYTE)


def test_exclusive_publisher_and_shared_publishers_refuse_each_other(path: str) -> None:
    with descriptions(path, 3) as (first, second, exclusive):
        assert lock(first, BYTE, READ)
        assert lock(second, BYTE, READ)
        assert not lock(exclusive, BYTE, WRITE)
        unlock(first, BYTE)
        assert not lock(exclusive, BYTE, WRITE)
        unlock(second, BYTE)
        assert lock(exclusive, BYTE, WRITE)
        assert not lock(first, BYTE, READ)
        assert not lock(second, BYTE, WRITE)


def test_a_refused_upgrade_keeps_the_shared_lock(path: str) -> None:
    with descriptions(path, 2) as (first, second):
        assert lock(first, BYTE, READ)
        assert lock(second, BYTE, READ)
        assert not lock(first, BYTE, WRITE)
        unlock(second, BYTE)
        assert others_hold(second, BYTE)


@pytest.mark.parametrize("shared", [True, False])
def test_death_of_a_publisher_frees_the_exclusive_byte(path: str, shared: bool) -> None:
    with holder(path, *(["--shared"] if shared else [])) as other, descriptions(path, 1) as (own,):
        assert not lock(own, BYTE, WRITE)
        assert lock(own, BYTE, READ) == shared
        unlock(own, BYTE)
        kill(other.pid)
        assert lock(own, BYTE, WRITE)


def test_locking_needs_the_matching_access(path: str) -> None:
    for flags, kind in ((os.O_RDONLY, WRITE), (os.O_WRONLY, READ)):
        descriptor = open_file(path, flags)
        with pytest.raises(OSError) as caught:
            lock(descriptor, BYTE, kind)
        os.close(descriptor)
        assert caught.value.errno == errno.EBADF


def test_bytes_far_behind_the_end_can_be_locked(path: str) -> None:
    with descriptions(path, 2) as (own, other):
        assert lock(own, FAR_BYTE)
        assert not lock(other, FAR_BYTE)
        assert lock(other, FAR_BYTE + 1)


def test_a_lock_over_a_range_looks_like_everybody(path: str) -> None:
    with descriptions(path, 2) as (own, other):
        assert lock(own, 0, WRITE, count=64)
        assert others_hold(other, 7)
        assert lock(own, 0, NONE, count=64)
        assert not others_hold(other, 7)


def test_unnamed_file_appears_with_its_locks_or_not_at_all(directory: Path, path: str) -> None:
    descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    assert lock(descriptor, BYTE, READ)
    # A directory descriptor, though unused, makes Python call linkat and follow the link in /proc.
    source = f"/proc/self/fd/{descriptor}"
    with pytest.raises(FileExistsError):
        os.link(source, path, src_dir_fd=descriptor)
    assert not held(path, BYTE)
    name = directory / "linked"
    os.link(source, name, src_dir_fd=descriptor)
    assert held(str(name), BYTE)
    assert not others_hold(descriptor, BYTE)
    os.close(descriptor)


def test_locks_stay_with_the_inode_when_its_name_is_taken(directory: Path, path: str) -> None:
    with descriptions(path, 1) as (own,):
        assert lock(own, BYTE)
        other = directory / "other"
        other.write_bytes(bytes(PAGE))
        other.rename(path)
        assert not held(path, BYTE)


@pytest.mark.parametrize(
    ("options", "kept_by_child"),
    [
        (("--child", "keep"), True),
        (("--child", "close"), False),
        (("--child", "close", "--anchor", "plain"), True),
        (("--child", "close", "--anchor", "dontfork"), False),
        (("--child", "keep", "--anchor", "dontfork", "--close"), False),
        (("--child", "stop"), True),
    ],
)
def test_forked_children(path: str, options: tuple[str, ...], kept_by_child: bool) -> None:
    with holder(path, *options) as parent:
        assert held(path, BYTE)
        kill(parent.pid)
        assert held(path, BYTE) == kept_by_child
        kill(parent.child)
        assert not held(path, BYTE)


@pytest.mark.parametrize(("how", "alive"), [("none", False), ("dontfork", True)])
def test_descriptor_closed_behind_our_back(path: str, how: str, alive: bool) -> None:
    with holder(path, "--anchor", how, "--close") as other:
        assert held(path, BYTE) == alive
        kill(other.pid)
        assert not held(path, BYTE)


def test_exec_ends_the_anchor(path: str) -> None:
    with holder(path, "--anchor", "dontfork", "--close", "--exec"):
        assert not held(path, BYTE)


def test_stopped_is_alive_and_killed_is_dead_before_it_is_reaped(path: str) -> None:
    with holder(path, "--anchor", "dontfork", "--close") as other:
        os.kill(other.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED | os.WNOWAIT)
        assert held(path, BYTE)
        kill(other.pid)
        assert not held(path, BYTE)


def test_unmapping_the_anchor_lets_go(path: str) -> None:
    descriptor = open_file(path)
    assert lock(descriptor, BYTE)
    address = anchor(descriptor, dont_fork=True)
    os.close(descriptor)
    assert held(path, BYTE)
    libc.munmap(address, PAGE)
    assert not held(path, BYTE)

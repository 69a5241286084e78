"""Domains: whose directory it is, what is in it, and what is refused."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import hawser
from hawser.memory import Domain
from hawser.testing import LocalBus


@pytest.fixture
def local() -> Iterator[LocalBus]:
    with LocalBus() as local:
        yield local


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_default_domain_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HAWSER_DIR", raising=False)
    assert Domain.of_url("shm://").directory == Path(f"/dev/shm/hawser-{os.geteuid()}/default")


def test_the_environment_names_the_default_domain(local: LocalBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAWSER_DIR", str(local.directory / "chosen"))
    with hawser.connect() as bus:
        assert bus.url == f"shm://{local.directory}/chosen"
        bus.topic("t").publish(b"x")
        assert (local.directory / "chosen" / "t.topic").exists()


def test_a_domain_is_made_private_whatever_the_umask(local: LocalBus) -> None:
    directory = local.directory / "deep" / "er"
    before = os.umask(0)
    try:
        with hawser.connect(f"shm://{directory}") as bus:
            assert bus.topics() == []
            assert not directory.exists()
            bus.topic("a/b")
            assert bus.topics() == ["a/b"]
    finally:
        os.umask(before)
    assert mode_of(directory) == mode_of(directory.parent) == 0o700
    assert mode_of(directory / ".lock") == 0o600
    assert mode_of(directory / "a%2Fb.topic") == 0o600


def test_a_group_shares_its_domain(local: LocalBus) -> None:
    directory = local.directory / "shared"
    with hawser.connect(f"shm://{directory}", mode="group") as bus:
        assert bus.topic("t").info().settings["mode"] == "group"
    assert mode_of(directory) == 0o770
    assert mode_of(directory / ".lock") == mode_of(directory / "t.topic") == 0o660


def test_a_symbolic_link_is_never_followed(local: LocalBus) -> None:
    (local.directory / "real").mkdir(mode=0o700)
    (local.directory / "link").symlink_to(local.directory / "real")
    with pytest.raises(hawser.PermissionDenied, match="symbolic link"):
        hawser.connect(f"shm://{local.directory}/link")
    (local.directory / "real" / ".lock").symlink_to(local.directory / "elsewhere")
    with pytest.raises(hawser.PermissionDenied, match="lock"):
        hawser.connect(f"shm://{local.directory}/real").topic("t")
    assert not (local.directory / "elsewhere").exists()


def test_a_directory_open_to_everybody_is_refused(local: LocalBus) -> None:
    local.directory.chmod(0o777)
    with pytest.raises(hawser.PermissionDenied, match="chmod"):
        local.connect()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(local: LocalBus) -> None:
    os.chown(local.directory, 12345, 12345)
    with pytest.raises(hawser.PermissionDenied, match="12345"):
        local.connect()
    local.directory.chmod(0o770)
    with pytest.raises(hawser.PermissionDenied, match="12345"):
        local.connect()
    os.chown(local.directory, 12345, os.getegid())
    local.connect().topic("t").publish(b"x")


def test_a_file_in_the_way_is_refused(local: LocalBus) -> None:
    (local.directory / "file").write_bytes(b"")
    with pytest.raises(hawser.UsageError, match="not a directory"):
        hawser.connect(f"shm://{local.directory}/file")
    with pytest.raises(hawser.UsageError, match="cannot be made"):
        hawser.connect(f"shm://{local.directory}/file/below").topic("t")


@pytest.mark.parametrize("url", ["", "shm:", "shm:/x", "shm://relative", "http://x", "shm:///a\0b", None, 3])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(hawser.UsageError):
        hawser.connect(url)


def test_other_files_are_not_listed(local: LocalBus) -> None:
    bus = local.connect()
    for name in ("b", "a/x", "имя"):
        bus.topic(name)
    (local.directory / "note.txt").write_text("mine")
    assert bus.topics() == ["a/x", "b", "имя"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_users_of_one_group_share_a_topic(local: LocalBus) -> None:
    os.chown(local.directory, 0, 12345)
    topic = local.connect(mode="group").topic("t")
    topic.publish(b"x")
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            os.setgroups([12345])
            os.setuid(54321)
            with hawser.connect(local.url) as bus:
                outcome = int(bus.topic("t").publish(b"y").first_offset != 2)
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [each.publisher[:9] for each in topic.read_oldest(9).samples] == ["anonymous"] * 2

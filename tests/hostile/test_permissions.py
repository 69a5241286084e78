"""Files and directories that are links, belong to others, or may not be opened."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hawser
from hawser.testing import LocalBus
from tests.support.children import Channel, Child

STRANGER = 54321
SHARED_GROUP = 54322
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")


def as_user(user: int, groups: list[int], work: Callable[[], None]) -> None:
    """Run `work` in a child that is another user."""

    def become_and_work(channel: Channel) -> None:
        os.setgroups(groups)
        os.setgid(groups[0] if groups else user)
        os.setuid(user)
        work()

    with Child(become_and_work):
        pass


def refused(url: str, topic: str = "topic") -> str:
    """The error of opening a topic there."""
    with pytest.raises(hawser.PermissionDenied) as error, hawser.connect(url) as bus:
        bus.topic(topic)
    assert isinstance(error.value, PermissionError)
    return str(error.value)


def assert_refused(url: str) -> None:
    assert refused(url)


def test_a_link_in_place_of_a_topic(local: LocalBus, tmp_path: Path) -> None:
    local.connect().topic("topic", slot_size=64).close()
    path = local.directory / "topic.topic"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert "link" in refused(local.url)
    assert elsewhere.read_bytes() == before


def test_a_link_to_nowhere_makes_no_file(local: LocalBus, tmp_path: Path) -> None:
    local.connect().topic("other", slot_size=64)
    (local.directory / "topic.topic").symlink_to(tmp_path / "nowhere")
    refused(local.url)
    assert not (tmp_path / "nowhere").exists()


def test_a_link_in_place_of_the_domain(local: LocalBus, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(local.directory)
    assert "link" in refused(f"shm://{link}")
    assert list(local.directory.iterdir()) == []


def test_a_link_in_place_of_the_lock_file(local: LocalBus, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (local.directory / ".lock").symlink_to(target)
    refused(local.url)
    assert not target.exists()


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_something_else_in_place_of_a_topic(local: LocalBus, kind: str) -> None:
    path = local.directory / "topic.topic"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(hawser.HawserError, match=r"topic\.topic"):
        local.connect().topic("topic")


def test_a_domain_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(hawser.UsageError, match="not a directory"):
        hawser.connect(f"shm://{path}").topic("topic")
    assert path.read_text() == "mine"


def test_a_domain_everybody_may_write_to(tmp_path: Path) -> None:
    domain = tmp_path / "open"
    domain.mkdir()
    domain.chmod(0o777)
    assert "chmod" in refused(f"shm://{domain}")
    assert list(domain.iterdir()) == []


@root_only
def test_a_topic_of_another_user(local: LocalBus) -> None:
    local.connect().topic("topic", slot_size=64).close()
    path = local.directory / "topic.topic"
    os.chown(path, STRANGER, STRANGER)
    before = path.read_bytes()
    assert str(STRANGER) in refused(local.url)
    assert path.read_bytes() == before


@root_only
def test_a_domain_of_another_user(tmp_path: Path) -> None:
    domain = tmp_path / "theirs"
    domain.mkdir(mode=0o700)
    os.chown(domain, STRANGER, STRANGER)
    assert str(STRANGER) in refused(f"shm://{domain}")


@root_only
def test_another_user_is_kept_out(local: LocalBus) -> None:
    local.connect().topic("topic", slot_size=64)

    def try_everything() -> None:
        refused(local.url)
        refused(local.url, "another")

    as_user(STRANGER, [STRANGER], try_everything)
    assert local.connect().topics() == ["topic"]


@root_only
def test_a_directory_that_may_not_be_written(local: LocalBus) -> None:
    local.directory.chmod(0o755)

    def make_a_domain() -> None:
        said = refused(f"{local.url}/below/domain")
        assert (
            f"no permission to use domain {local.directory}/below/domain: {local.directory} belongs to"
            in said
        )

    as_user(STRANGER, [STRANGER], make_a_domain)
    assert list(local.directory.iterdir()) == []


@root_only
def test_the_own_domain_of_another_user(local: LocalBus) -> None:
    local.connect().topic("topic", slot_size=64)
    theirs = f"{local.url}/theirs/default"
    (local.directory / "theirs").mkdir(mode=0o700)
    local.directory.chmod(0o755)

    def look() -> None:
        with pytest.raises(hawser.PermissionDenied, match=r"theirs belongs to user 0, and you are \d+;"):
            hawser.connect(theirs).topics()

    as_user(STRANGER, [STRANGER], look)


@pytest.fixture
def shared_group() -> Iterator[int]:
    """A group that this process belongs to during the test."""
    groups = os.getgroups()
    os.setgroups([*groups, SHARED_GROUP])
    yield SHARED_GROUP
    os.setgroups(groups)


@root_only
def test_a_group_shares_a_topic(local: LocalBus, shared_group: int) -> None:
    os.chown(local.directory, 0, shared_group)
    topic = local.connect("owner", mode="group").topic("shared", slot_size=64, mode="group")
    subscription = topic.subscribe()

    def publish_as_a_member() -> None:
        with hawser.connect(local.url, name="member", mode="group") as bus:
            shared = bus.topic("shared")
            shared.publish(b"from a member")
            bus.topic("theirs", slot_size=64, mode="group").publish(b"x")
            assert bus.recover() == []

    as_user(STRANGER, [shared_group], publish_as_a_member)
    as_user(STRANGER, [STRANGER], lambda: assert_refused(local.url))
    sample = subscription.take(10)
    assert sample is not None
    assert (bytes(sample), sample.publisher) == (b"from a member", "member")
    assert bytes(local.connect().topic("theirs").read_newest(1).samples[0]) == b"x"

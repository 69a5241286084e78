"""`hawser doctor`: sound by default, and every planted fault is found without being touched."""

import os
import re
import struct
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hawser.cli.doctor.host import EXTRAS, host_checks, remove_ipc
from hawser.testing import LocalBus
from tests.support.boots import make_topic_of_earlier_boot
from tests.support.children import Channel, sleep_for_ever, victim
from tests.support.command import Command

ROOT = Path(__file__).resolve().parents[3]
SETTINGS_AT = 88


def _verdicts(report: Any) -> dict[str, str]:
    return {each["check"]: each["verdict"] for each in report["checks"]}


def test_a_sound_host_and_domain(command: Command, local: LocalBus) -> None:
    local.connect("tester").topic("t").publish(b"x")
    local.connect("tester").queue("q").put(b"x")
    report = command.json("doctor")
    verdicts = _verdicts(report)
    assert "1 topics and 1 queues are intact" in [each["finding"] for each in report["checks"]]
    assert report["healthy"]
    assert set(verdicts) == {
        *("versions", "extras", "/proc", "memory", "O_TMPFILE", "OFD locks", "futex_waitv", "RemoveIPC"),
        *("directory", "files", "contents", "leftovers", "topics", "participants", "slots"),
        *("Spark", "Java", "PYSPARK_PYTHON"),
    }
    may_warn = {"memory", "futex_waitv", "Java"}
    assert {name for name, verdict in verdicts.items() if verdict != "ok"} <= may_warn
    assert "0 failed" in command.run("doctor").stderr


def test_all_extras_are_looked_for() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"bench"}
    for extra, packages in EXTRAS.items():
        assert {re.split(r"\W", package)[0] for package in declared[extra]} == set(packages)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "etcd", ("no-such-package-of-hawser",))
    finding = next(each for each in host_checks(Path("/dev/shm")) if each.check == "extras")
    assert finding.finding == "not installed: etcd (pip install 'hawser-bus[etcd]')"


def test_a_domain_that_is_not_there_yet(command: Command, local: LocalBus) -> None:
    report = command.json("doctor", "--url", f"{local.url}/later")
    assert _verdicts(report)["directory"] == "ok"
    assert os.listdir(local.directory) == []


def test_a_domain_open_to_all_is_refused(command: Command, local: LocalBus) -> None:
    local.directory.chmod(0o777)
    report = command.json("doctor", code=4)
    assert _verdicts(report) == {"directory": "fail"}


def _plant_link(directory: Path) -> None:
    (directory / "link.topic").symlink_to("/etc/passwd")


def _plant_nonsense(directory: Path) -> None:
    (directory / "bad.topic").write_bytes(b"nonsense" * 1000)
    (directory / "bad.topic").chmod(0o600)


def _plant_damage(directory: Path) -> None:
    with open(directory / "t.topic", "r+b") as file:
        file.seek(SETTINGS_AT)
        file.write(struct.pack("Q", 12345))


def _plant_open_file(directory: Path) -> None:
    (directory / "t.topic").chmod(0o666)


def _plant_stranger(directory: Path) -> None:
    (directory / "notes.txt").write_text("hello")


@pytest.mark.parametrize(
    ("plant", "check", "verdict"),
    [
        (_plant_link, "contents", "fail"),
        (_plant_nonsense, "contents", "fail"),
        (_plant_damage, "topics", "fail"),
        (_plant_open_file, "files", "fail"),
        (_plant_stranger, "contents", "warn"),
    ],
)
def test_faults_are_found_and_left_alone(
    command: Command, local: LocalBus, plant: Callable[[Path], None], check: str, verdict: str
) -> None:
    local.connect("tester").topic("t").close()
    plant(local.directory)
    before = sorted(os.listdir(local.directory))
    report = command.json("doctor", code=4 if verdict == "fail" else 0)
    assert _verdicts(report)[check] == verdict
    assert all(each["advice"] for each in report["checks"] if each["verdict"] != "ok")
    assert sorted(os.listdir(local.directory)) == before


def test_a_topic_of_an_earlier_boot_is_found(command: Command, local: LocalBus, tmp_path: Path) -> None:
    make_topic_of_earlier_boot(local.url, "old", tmp_path)
    for _ in range(2):
        assert _verdicts(command.json("doctor"))["leftovers"] == "warn"
    command.run("reap")
    assert _verdicts(command.json("doctor"))["leftovers"] == "ok"


def test_the_dead_are_found_and_not_recovered(command: Command, local: LocalBus) -> None:
    def subscribe(channel: Channel) -> None:
        subscription = local.connect("victim").topic("t").subscribe()
        channel.tell("ready")
        sleep_for_ever()
        del subscription

    with victim(subscribe) as child:
        assert child.hear() == "ready"
        child.kill()
    for _ in range(2):
        report = command.json("doctor")
        assert _verdicts(report)["participants"] == "warn"
    command.run("reap")
    assert _verdicts(command.json("doctor"))["participants"] == "ok"


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({}, "warn"),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, "warn"),
        ({"etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n"}, "ok"),
        (
            {
                "etc/systemd/logind.conf": "[Login]\nRemoveIPC=no\n",
                "etc/systemd/logind.conf.d/10.conf": "[Login]\nRemoveIPC=yes\n",
            },
            "warn",
        ),
        ({"usr/lib/systemd/logind.conf.d/10.conf": "[Login]\nRemoveIPC=false\n"}, "ok"),
    ],
)
def test_what_the_login_manager_removes(tmp_path: Path, files: dict[str, str], verdict: str) -> None:
    domain = Path("/dev/shm/hawser-1234/default")
    assert remove_ipc(domain, tmp_path, 1234).verdict == "ok"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert remove_ipc(domain, tmp_path, 1234).verdict == verdict
    assert remove_ipc(domain, tmp_path, 0).verdict == "ok"
    assert remove_ipc(Path("/var/hawser"), tmp_path, 1234).verdict == "ok"

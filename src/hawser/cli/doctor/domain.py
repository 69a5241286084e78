"""Checks of a domain: its permissions and its files."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import hawser
from hawser.cli.doctor import Finding
from hawser.cli.output import count

__all__ = ["domain_checks", "refused_domain"]


def refused_domain(error: hawser.PermissionDenied) -> Finding:
    """The finding for a domain that cannot be opened."""
    return Finding(
        "directory", "fail", str(error), "correct its owner and permissions, or use another domain"
    )


def domain_checks(bus: hawser.Bus, directory: Path) -> Iterator[Finding]:
    """Check the domain without changing it."""
    if not directory.exists():
        yield Finding("directory", "ok", f"{directory} is created with the first topic or queue")
        return
    yield _directory(directory)
    files = bus.files()
    yield _permissions(directory, files)
    yield _contents(directory, files)
    yield _leftovers(files)
    yield from _topics(bus, files)


def _directory(directory: Path) -> Finding:
    found = directory.stat()
    mode = stat.S_IMODE(found.st_mode)
    text = f"{directory}, user {found.st_uid}, mode {mode:04o}"
    if mode & stat.S_IRWXO:
        return Finding("directory", "warn", f"{text}: readable by all users", f"chmod o= {directory}")
    return Finding("directory", "ok", text)


def _permissions(directory: Path, files: list[hawser.DomainFile]) -> Finding:
    shared = bool(directory.stat().st_mode & stat.S_IWGRP)
    allowed = 0o660 if shared else 0o600
    wrong = [each.file for each in files if each.state != "foreign" and each.mode & ~allowed]
    others = [each.file for each in files if each.uid != os.geteuid() and not shared]
    if others:
        return Finding(
            "files", "fail", f"owned by other users: {_names(others)}", "remove them, or share the domain"
        )
    if wrong:
        advice = f"chmod {allowed:03o} them; other users can read or change the messages"
        return Finding("files", "fail", f"open to other users: {_names(wrong)}", advice)
    return Finding("files", "ok", f"{count(len(files))} with correct owner and permissions")


def _contents(directory: Path, files: list[hawser.DomainFile]) -> Finding:
    links = [each.file for each in files if (directory / each.file).is_symlink()]
    unreadable = [each.file for each in files if each.state == "unreadable"]
    damaged = [each.file for each in files if each.state == "foreign" and each.topic is not None]
    foreign = [each.file for each in files if each.state in ("foreign", "other version")]
    if links:
        return Finding("contents", "fail", f"symbolic links: {_names(links)}", "remove them")
    if unreadable:
        return Finding(
            "contents", "fail", f"cannot be read: {_names(unreadable)}", "correct their permissions"
        )
    if damaged:
        advice = "move them away; topics and queues of these names cannot be opened"
        return Finding(
            "contents", "fail", f"not a topic or queue despite the name: {_names(damaged)}", advice
        )
    if foreign:
        advice = "move them away, or use the version of Hawser that created them"
        return Finding("contents", "warn", f"not from this version of Hawser: {_names(foreign)}", advice)
    return Finding("contents", "ok", "only topics and queues")


def _leftovers(files: list[hawser.DomainFile]) -> Finding:
    stale = [f"{each.file} ({each.state})" for each in files if each.state in ("leftover", "earlier boot")]
    if stale:
        return Finding("leftovers", "warn", _names(stale), "run: hawser reap")
    return Finding("leftovers", "ok", "none")


def _topics(bus: hawser.Bus, files: list[hawser.DomainFile]) -> Iterator[Finding]:
    infos: list[hawser.TopicInfo | hawser.QueueInfo] = []
    broken: list[str] = []
    for each in files:
        # A leftover is not opened, because that would remove it.
        if each.state not in ("topic", "queue") or each.topic is None:
            continue
        opening = bus.topic if each.state == "topic" else bus.queue
        try:
            with opening(each.topic, create=False) as opened:
                infos.append(opened.info())
        except (hawser.NotFound, hawser.Closed):
            continue
        except hawser.HawserError as error:
            broken.append(str(error))
    dead = [f"{each.name} of {each.topic}" for info in infos for each in info.participants if not each.alive]
    leaked = [f"{info.name}: {count(info.slots_leaked)}" for info in infos if info.slots_leaked]
    for text in broken:
        yield Finding("topics", "fail", text, "delete the file once it is not needed, and report the error")
    if not broken:
        queues = sum(isinstance(info, hawser.QueueInfo) for info in infos)
        yield Finding(
            "topics", "ok", f"{count(len(infos) - queues)} topics and {count(queues)} queues are intact"
        )
    if dead:
        yield Finding("participants", "warn", f"dead: {_names(dead)}", "run: hawser reap")
    else:
        alive = sum(len(info.participants) for info in infos)
        yield Finding("participants", "ok", f"{count(alive)} alive, none dead")
    if leaked:
        yield Finding(
            "slots", "fail", f"leaked: {_names(leaked)}", "delete these topics and queues, and report this"
        )
    else:
        yield Finding("slots", "ok", "none leaked")


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {count(len(names) - 3)} more" if len(names) > 3 else shown

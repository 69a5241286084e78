"""A domain: the directory with the topics and queues of one host.

A name is either a topic or a queue. It has one file, whose label tells the kind.

The directory and its files belong to one user (0700), or with `mode="group"` to one group (0770). Symbolic
links into it are not followed, and a directory that another user could have prepared is refused, because
every user who can write to it can read and forge messages.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from hawser.errors import Closed, HawserError, NotFound, PermissionDenied, UsageError
from hawser.memory._native import Region
from hawser.memory.labels import Label, label_of_file
from hawser.memory.names import file_name_of, topic_name_of
from hawser.memory.settings import RegionSettings, check_same, complete, kind_of

__all__ = ["LOCK_NAME", "TRACE_NAME", "Domain"]

R = TypeVar("R")

_SCHEME: Final = "shm://"
# No region can have this file name.
LOCK_NAME: Final = ".lock"
TRACE_NAME: Final = ".trace"
# The most attempts to open a topic that others delete and create again meanwhile.
_OPEN_ATTEMPTS: Final = 100


class Domain:
    """A domain; its directory is created with the first topic or queue."""

    def __init__(self, directory: Path, *, group: bool = False, private_parent: bool = False) -> None:
        self.directory = directory
        self.group = group
        self._private_parent = private_parent
        if os.path.lexists(directory):
            self.check()

    @classmethod
    def of_url(cls, url: Any, *, group: bool = False) -> "Domain":
        """The domain of a URL: `shm://` is the user's own, `shm:///path` that directory."""
        if not isinstance(url, str) or not url.startswith(_SCHEME):
            # `connect` passes on every URL that is not a cluster's.
            cluster = isinstance(url, str) and url.startswith("hawser://")
            others = "" if cluster else ", or hawser://host:port for a cluster"
            raise UsageError(
                f"{url!r} is no URL of a domain; write shm:// or shm:///path/of/a/directory{others}"
            )
        path = url.removeprefix(_SCHEME)
        if "\0" in path:
            raise UsageError(f"the path of {url!r} has a NUL character; leave it out")
        if path:
            if not path.startswith("/"):
                raise UsageError(f"{url!r} names no directory; write it with three slashes: shm:///{path}")
            return cls(Path(path), group=group)
        chosen = os.environ.get("HAWSER_DIR")
        if chosen:
            return cls(Path(os.path.abspath(chosen)), group=group)
        own = Path(f"/dev/shm/hawser-{os.geteuid()}/default")
        return cls(own, group=group, private_parent=True)

    @property
    def url(self) -> str:
        """The URL of this domain, valid for all users."""
        return f"{_SCHEME}{self.directory}"

    def topics(self) -> list[str]:
        """The names of all topics, sorted, and of other files named like topics that are not queues."""
        return [name for name in self.names() if self.kind_of(name) != "queue"]

    def queues(self) -> list[str]:
        """Names of all queues, sorted."""
        return [name for name in self.names() if self.kind_of(name) == "queue"]

    def kind_of(self, name: str) -> str | None:
        """The kind on the label of its file: "topic" or "queue"; None without a readable label."""
        try:
            label = self.label_of(name)
        except OSError:
            return None
        return None if label is None else label.kind

    def label_of(self, name: str) -> Label | None:
        """The unchecked label of its file; None without a label, OSError if it cannot be read."""
        return label_of_file(self.path_of(name))

    def numbers(self) -> set[int] | None:
        """The numbers of all topics and queues, as in `Region.pinning`; None if a file cannot be read."""
        try:
            labels = [self.label_of(name) for name in self.names()]
        except (OSError, PermissionDenied):
            return None
        return {label.number for label in labels if label is not None}

    def names(self) -> list[str]:
        """The names of all topics and queues, sorted; empty without the directory."""
        try:
            files = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise self._no_permission() from error
        return sorted(name for name in map(topic_name_of, files) if name is not None)

    def path_of(self, name: str) -> Path:
        """The file of a topic or queue, whether it exists or not."""
        return self.directory / file_name_of(name)

    def open(self, name: str, given: RegionSettings | None = None) -> Region:
        """The region of that name; NotFound without one. With given settings, UsageError if it is of the
        other kind and SettingsMismatch if a setting differs."""
        path = self.path_of(name)
        if not os.path.lexists(path):
            kind = kind_of(given or {})
            raise NotFound(f"there is no {kind} {name!r} in {self.directory}; see `hawser {kind} list`")
        self.check()
        region = Region.attach(str(path), str(self._lock_file()), name, None)
        return region if given is None else _checked(region, name, given)

    def watch(self, name: str) -> Region | None:
        """A region for observation only (Region.watch), without waiting and without becoming a participant;
        None if it does not exist."""
        path = self.path_of(name)
        if not os.path.lexists(path):
            return None
        self.check()
        return Region.watch(str(path), str(self.directory / LOCK_NAME), name)

    def open_or_create(self, name: str, given: RegionSettings, rest: RegionSettings | None = None) -> Region:
        """The region of that name. A new one gets the given settings, then those in `rest`, then defaults.
        UsageError or SettingsMismatch as for `open`, without a change."""
        path = self.path_of(name)
        self._create(group=bool(given.get("group", self.group)))
        of_new = {**({"group": 1} if self.group else {}), **(rest or {}), **given}
        for _ in range(_OPEN_ATTEMPTS):
            try:
                region = self._attach(name, path, of_new)
            except Closed:
                continue
            return _checked(region, name, given)
        raise Closed(
            f"{kind_of(given)} {name!r} is deleted again and again by others; open it when they are done"
        )

    def gather(self, look: Callable[[Region], list[R]]) -> list[R]:
        """The results of `look` for all topics and queues, in one list. A region that fails is left out and
        logged."""
        found: list[R] = []
        for name in self.names():
            try:
                region = self.open(name)
                try:
                    found.extend(look(region))
                finally:
                    region.close()
            except (NotFound, Closed):
                continue
            except HawserError as error:
                import logging

                logging.getLogger("hawser.memory").warning("%r is left out: %s", name, error)
        return found

    def _attach(self, name: str, path: Path, of_new: RegionSettings) -> Region:
        try:
            settings = complete(of_new)
        except UsageError:
            # Together with the settings of the existing region the given ones may be valid.
            if not os.path.lexists(path):
                raise
            return Region.attach(str(path), str(self._lock_file()), name, None)
        return Region.attach(str(path), str(self._lock_file()), name, settings)

    def _create(self, *, group: bool) -> None:
        try:
            for path in (*reversed(self.directory.parents), self.directory):
                if not os.path.lexists(path):
                    _make_directory(path, 0o700)
        except PermissionError as error:
            raise self._no_permission() from error
        except OSError as error:
            raise UsageError(
                f"domain {self.directory} cannot be made: {error.strerror}; choose another by HAWSER_DIR "
                "or shm:///path"
            ) from error
        self.check()
        if group:
            _share(self.directory, 0o070)
            if self._private_parent:
                _share(self.directory.parent, 0o010)

    def _no_permission(self) -> PermissionDenied:
        """The error for a directory that this user may not use."""
        barrier = next(path for path in (self.directory, *self.directory.parents) if os.path.lexists(path))
        found, user = os.lstat(barrier), os.geteuid()
        why = f"has mode {stat.S_IMODE(found.st_mode):o}"
        if found.st_uid != user:
            why = f"belongs to user {found.st_uid}, and you are {user}"
        return PermissionDenied(
            f"no permission to use domain {self.directory}: {barrier} {why}; choose a domain of your own by "
            "HAWSER_DIR or shm:///path"
        )

    def check(self) -> None:
        """Raises PermissionDenied or UsageError if the directory is not safe to use."""
        if self._private_parent:
            _check_directory(self.directory.parent)
        _check_directory(self.directory)

    def is_shared(self) -> bool:
        """Whether its group has access."""
        return bool(os.stat(self.directory).st_mode & stat.S_IWGRP)

    def _lock_file(self) -> Path:
        """The domain's lock file, created if it is missing."""
        path = self.directory / LOCK_NAME
        shared = self.is_shared()
        mode = 0o660 if shared else 0o600
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, mode)
        except OSError as error:
            raise PermissionDenied(
                f"lock file {path} cannot be opened: {error.strerror}; it must be a plain file of yours"
            ) from error
        try:
            if shared:
                _give_to_group(descriptor, self.directory)
            found = os.fstat(descriptor)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
                os.fchmod(descriptor, mode)
            elif found.st_uid != os.geteuid() and not shared:
                raise PermissionDenied(f"lock file {path} belongs to user {found.st_uid}; remove it")
        finally:
            os.close(descriptor)
        return path


def _checked(region: Region, name: str, given: RegionSettings) -> Region:
    """The region if it has the given settings; otherwise closes it and raises."""
    try:
        check_same(name, given, region.settings())
    except BaseException:
        region.close()
        raise
    return region


def _make_directory(path: Path, mode: int) -> None:
    """Create the directory if it is missing, with this mode regardless of the umask."""
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return
    path.chmod(mode)


def _share(path: Path, bits: int) -> None:
    """Give the directory's group access, if the directory is the user's own."""
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & bits != bits:
        path.chmod(mode | bits)


def _give_to_group(file: int, directory: Path) -> None:
    """Give a file to the group of its directory, which may not be the user's primary group."""
    group = os.stat(directory).st_gid
    found = os.stat(file)
    if found.st_uid == os.geteuid() and found.st_gid != group:
        os.chown(file, -1, group)


def _check_directory(path: Path) -> None:
    try:
        found = os.lstat(path)
    except OSError as error:
        raise PermissionDenied(f"domain {path} cannot be looked at: {error.strerror}") from error
    if stat.S_ISLNK(found.st_mode):
        raise PermissionDenied(f"domain {path} is a symbolic link; name the directory it leads to")
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"domain {path} is not a directory; choose another path")
    if found.st_mode & stat.S_IWOTH:
        raise PermissionDenied(f"domain {path} is world-writable; run: chmod o-w {path}")
    if found.st_uid == os.geteuid():
        return
    shared = found.st_mode & stat.S_IRWXG == stat.S_IRWXG
    if not (shared and found.st_gid in {os.getegid(), *os.getgroups()}):
        raise PermissionDenied(
            f"domain {path} belongs to user {found.st_uid}, not to you ({os.geteuid()}); use a domain of "
            'your own, or let its owner share it with mode="group"'
        )

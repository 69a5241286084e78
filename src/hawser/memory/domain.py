"""A domain: the directory in which the topics and queues of one host live.

A name is a topic or a queue: it has one file, whose label says what it is.

The directory and everything in it belong to one user (0700), or with `mode="group"` to one group
(0770). Symbolic links are never followed into it, and a directory somebody else could have prepared
is refused: whoever may write to it could read and forge every message.
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
# No region has such a file name.
LOCK_NAME: Final = ".lock"
TRACE_NAME: Final = ".trace"
# How often opening starts again when the topic is deleted and made anew by others meanwhile.
_OPEN_ATTEMPTS: Final = 100


class Domain:
    """A checked domain directory; it exists from the first topic or queue on."""

    def __init__(self, directory: Path, *, group: bool = False, private_parent: bool = False) -> None:
        self.directory = directory
        self.group = group
        self._private_parent = private_parent
        if os.path.lexists(directory):
            self.check()

    @classmethod
    def of_url(cls, url: Any, *, group: bool = False) -> "Domain":
        """The domain an URL names: `shm://` the user's own, `shm:///path` that directory."""
        if not isinstance(url, str) or not url.startswith(_SCHEME):
            # `connect` hands over whatever is no URL of a cluster.
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
        """The URL that names this domain for everybody."""
        return f"{_SCHEME}{self.directory}"

    def topics(self) -> list[str]:
        """Names of all topics, sorted; so is whatever has the file name of one and is no queue."""
        return [name for name in self.names() if self.kind_of(name) != "queue"]

    def queues(self) -> list[str]:
        """Names of all queues, sorted."""
        return [name for name in self.names() if self.kind_of(name) == "queue"]

    def kind_of(self, name: str) -> str | None:
        """What the label of its file says: "topic" or "queue"; None if there is none to be read."""
        try:
            label = self.label_of(name)
        except OSError:
            return None
        return None if label is None else label.kind

    def label_of(self, name: str) -> Label | None:
        """What its file says about itself, unchecked; None if it is none, OSError if it cannot be read."""
        return label_of_file(self.path_of(name))

    def numbers(self) -> set[int] | None:
        """The numbers of the existing topics and queues, as `Region.pinning` names them; None if one of their
        files cannot be read."""
        try:
            labels = [self.label_of(name) for name in self.names()]
        except (OSError, PermissionDenied):
            return None
        return {label.number for label in labels if label is not None}

    def names(self) -> list[str]:
        """Of topics and queues, sorted; none while the directory does not exist."""
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
        """The region of that name; NotFound if there is none. With given settings a UsageError if it is of
        the other kind, and SettingsMismatch if it contradicts one of them."""
        path = self.path_of(name)
        if not os.path.lexists(path):
            kind = kind_of(given or {})
            raise NotFound(f"there is no {kind} {name!r} in {self.directory}; see `hawser {kind} list`")
        self.check()
        region = Region.attach(str(path), str(self._lock_file()), name, None)
        return region if given is None else _checked(region, name, given)

    def watch(self, name: str) -> Region | None:
        """A look at a region that nobody notices and that waits for nobody (Region.watch); None if there is
        none of that name."""
        path = self.path_of(name)
        if not os.path.lexists(path):
            return None
        self.check()
        return Region.watch(str(path), str(self.directory / LOCK_NAME), name)

    def open_or_create(self, name: str, given: RegionSettings, rest: RegionSettings | None = None) -> Region:
        """The region of that name. If there is none it is made with the given settings, `rest` for those that
        are not given, and defaults for what is in neither.

        UsageError or SettingsMismatch as for `open`; nothing is changed then."""
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
        """What `look` finds in each topic and queue, all in one list. What cannot be looked at is left out
        and logged, so that it does not hide the others."""
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
            # With the settings of what exists what was given may well fit.
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
        """Names the directory that this user may not use, and why."""
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
        """PermissionDenied or UsageError if the directory is not one to be trusted."""
        if self._private_parent:
            _check_directory(self.directory.parent)
        _check_directory(self.directory)

    def is_shared(self) -> bool:
        """Whether its group may use it."""
        return bool(os.stat(self.directory).st_mode & stat.S_IWGRP)

    def _lock_file(self) -> Path:
        """The domain's lock file, made if it is missing."""
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
    """The region itself if it has the given settings; otherwise it is closed."""
    try:
        check_same(name, given, region.settings())
    except BaseException:
        region.close()
        raise
    return region


def _make_directory(path: Path, mode: int) -> None:
    """Make it unless it is there; the mode does not depend on the umask."""
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        return
    path.chmod(mode)


def _share(path: Path, bits: int) -> None:
    """Let the directory's group in, if it is ours to do so."""
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.geteuid() and mode & bits != bits:
        path.chmod(mode | bits)


def _give_to_group(file: int, directory: Path) -> None:
    """Let a file of ours belong to the group of its directory, which may not be our first one."""
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
        raise PermissionDenied(f"everybody may write to domain {path}; run: chmod o-w {path}")
    if found.st_uid == os.geteuid():
        return
    shared = found.st_mode & stat.S_IRWXG == stat.S_IRWXG
    if not (shared and found.st_gid in {os.getegid(), *os.getgroups()}):
        raise PermissionDenied(
            f"domain {path} belongs to user {found.st_uid}, not to you ({os.geteuid()}); use a domain of "
            'your own, or let its owner share it with mode="group"'
        )

"""The files of a node on its disk, beside the journals of its shards.

DIR/node.json             the id of the node, and its cluster
DIR/shards/NAME/          the journal of a shard; its name is percent-encoded
DIR/damaged/NAME.NUMBER/  a journal that was found damaged, kept for inspection
DIR/removed/NAME.NUMBER/  a journal that is being deleted; a partly deleted one is never opened
"""

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from hawser.cluster.disk import Disk, DiskCounters
from hawser.errors import Corrupt, UsageError
from hawser.log.journal import file_names

__all__ = ["NodeDirectory"]

_log = logging.getLogger("hawser.cluster.node")


class _Identity(msgspec.Struct, frozen=True):
    node: str
    cluster: str = ""


_decode = msgspec.json.Decoder(_Identity).decode


class NodeDirectory:
    """The directory of one node, locked for one process."""

    def __init__(self, path: Path, node: str) -> None:
        self.path = path
        self.counters = DiskCounters()
        (path / "shards").mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise UsageError(
                f"{path} is in use by another node; give each node a directory of its own"
            ) from None
        self._identity = self._load(node)
        for left in (path / "removed").glob("*"):
            self._delete(left)

    def _load(self, node: str) -> _Identity:
        file = self.path / "node.json"
        if not file.exists():
            return _Identity(node)
        try:
            found = _decode(file.read_bytes())
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"{file} cannot be read ({error}); restore it, or give the node a new directory"
            ) from error
        if found.node != node:
            raise UsageError(
                f"{self.path} belongs to node {found.node!r}, not to {node!r}; start it with that id"
            )
        return found

    @property
    def cluster(self) -> str:
        """The cluster that this node belongs to; empty before it joins one."""
        return self._identity.cluster

    def join(self, cluster: str) -> None:
        """Joins `cluster`, durably."""
        assert not self.cluster
        self._identity = _Identity(self._identity.node, cluster)
        file = self.path / "node.json"
        new = file.with_suffix(".new")
        with new.open("wb") as stream:
            stream.write(msgspec.json.encode(self._identity))
            stream.flush()
            os.fsync(stream.fileno())
        new.rename(file)
        self._sync(self.path)

    def shards(self) -> Iterator[str]:
        """The names of the shards that have a directory."""
        for entry in sorted((self.path / "shards").iterdir()):
            yield unquote(entry.name)

    def disk(self, shard: str) -> Disk:
        """The storage of a shard, which is created if there is none."""
        return Disk(self._shard(shard), self.counters)

    def has(self, shard: str) -> bool:
        """Whether there are files of a shard."""
        return self._shard(shard).exists()

    def new_member(self) -> str:
        """The name of a new member."""
        return f"{self._identity.node}.{secrets.token_hex(4)}"

    def remove(self, shard: str) -> None:
        path = self._shard(shard)
        try:
            path = self._rename(shard, self.path / "removed")
        except OSError as error:
            # The disk is full, or "shards" is a mount point. Without its promise file a journal is
            # never opened, even if only a part of it can be deleted.
            _log.info("%s is deleted in place: %s", path, error)
            (path / file_names.PROMISE).unlink(missing_ok=True)
            self._sync(path)
        self._sync(path.parent)
        self._sync(self.path / "shards")
        self._delete(path)

    def put_aside(self, shard: str) -> Path:
        """Moves a damaged journal away, and returns its new place."""
        path = self._rename(shard, self.path / "damaged")
        self._sync(path.parent)
        self._sync(self.path / "shards")
        return path

    def _rename(self, shard: str, where: Path) -> Path:
        where.mkdir(exist_ok=True)
        number = 1
        while (target := where / f"{quote(shard, safe='')}.{number}").exists():
            number += 1
        self._shard(shard).rename(target)
        return target

    @staticmethod
    def _delete(path: Path) -> None:
        try:
            shutil.rmtree(path)
        except OSError as error:
            _log.warning("%s cannot be deleted now: %s; the next start of the node tries again", path, error)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        os.close(self._lock)

    def _shard(self, shard: str) -> Path:
        return self.path / "shards" / quote(shard, safe="")

    @staticmethod
    def _sync(directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

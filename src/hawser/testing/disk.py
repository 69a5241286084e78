"""A simulated disk that loses and tears writes, fills up, fails and flips bits, for tests of storage.

It guarantees what `hawser.log.journal.storage` requires, and no more. Between two syncs each write, change of
size, creation, rename and removal is pending: a crash keeps it, loses it, or tears it if it is a write,
independently of the others.

    disk = SimDisk()
    journal = Journal.format(disk, "shard", "node.disk")
    ...
    disk.crash(random.Random(7))
    journal = Journal.open(disk)

All randomness comes from the given `random.Random`, so the same generator gives the same crash.
"""

import itertools
from collections.abc import Iterator, Sequence
from enum import Enum
from random import Random
from typing import Final, NamedTuple, Self

from hawser.log.journal.storage import StorageFailed, StorageFull

__all__ = ["SECTOR_BYTES", "Fate", "Flip", "PowerLoss", "SimDisk"]

SECTOR_BYTES: Final = 512


class PowerLoss(BaseException):
    """The power failed before the operation of `power_lost_before`. Call `crash` or `crash_with` now."""


class Fate(Enum):
    """The effect of a crash on a pending operation. Only a write can be torn; for another operation it means
    lost."""

    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"


class Flip(NamedTuple):
    """The bit that was flipped."""

    name: str
    byte: int
    bit: int


class _Write(NamedTuple):
    start: int
    old: bytes
    new: bytes


class _Resize(NamedTuple):
    old: int
    new: int
    lost: bytes


class _File:
    """The current bytes of a file, and the operations since the last sync."""

    __slots__ = ("data", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.pending: list[_Write | _Resize] = []

    def copy(self) -> "_File":
        file = _File()
        file.data = bytearray(self.data)
        file.pending = list(self.pending)
        return file

    def settle(self, fates: Iterator[Fate], random: Random) -> None:
        """Apply a crash."""
        for operation in reversed(self.pending):
            if isinstance(operation, _Write):
                self.data[operation.start : operation.start + len(operation.old)] = operation.old
            else:
                del self.data[operation.old :]
                self.data += operation.lost
        for operation in self.pending:
            fate = next(fates)
            if isinstance(operation, _Resize):
                if fate is Fate.KEPT:
                    self._resize(operation.new)
            elif fate is Fate.KEPT:
                self._put(operation.start, operation.new)
            elif fate is Fate.TORN:
                self._put(operation.start, _torn(operation, random))
        self.pending.clear()

    def _resize(self, size: int) -> None:
        del self.data[size:]
        self.data += bytes(size - len(self.data))

    def _put(self, start: int, data: bytes) -> None:
        if start + len(data) > len(self.data):
            self._resize(start + len(data))
        self.data[start : start + len(data)] = data


def _torn(write: _Write, random: Random) -> bytes:
    """The bytes of a torn write: each sector is old, new, garbage, or partly new."""
    data = bytearray(write.old)
    begin = 0
    while begin < len(data):
        end = min(len(data), begin + SECTOR_BYTES - (write.start + begin) % SECTOR_BYTES)
        outcome = random.randrange(4)
        if outcome == 0:
            data[begin:end] = write.new[begin:end]
        elif outcome == 1:
            data[begin:end] = random.randbytes(end - begin)
        elif outcome == 2:
            middle = random.randint(begin, end)
            data[begin:middle] = write.new[begin:middle]
        begin = end
    return bytes(data)


class _Name(NamedTuple):
    """A change of the directory: the name `gone` is removed, and the name `come` is added for `file`."""

    gone: str | None
    come: str | None
    file: _File | None


class SimDisk:
    """The files of one directory; see the docstring of the module.

    `capacity_bytes` bounds the reserved sizes of all files, and `refusals` counts the operations that it
    refused. With `fail_sync` each sync fails until the next crash, as on a real disk after a write error.
    `operations` counts the operations that change the disk; the one with the number `power_lost_before`
    raises PowerLoss. `reads` counts the calls that read.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.fail_sync = False
        self.operations = 0
        self.reads = 0
        self.refusals = 0
        self.power_lost_before: int | None = None
        self._files: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._pending: list[_Name] = []
        self._used = 0
        self._has_failed = False

    # The Storage interface.

    def names(self) -> list[str]:
        return sorted(self._files)

    def size(self, name: str) -> int:
        return len(self._file(name).data)

    def read(self, name: str, start: int, size: int) -> bytes:
        self.reads += 1
        return bytes(self._file(name).data[start : start + size])

    def create(self, name: str, size: int) -> None:
        self._begin()
        if name in self._files:
            raise FileExistsError(name)
        self._use(size)
        file = _File()
        file.data = bytearray(size)
        file.pending.append(_Resize(0, size, b""))
        self._files[name] = file
        self._pending.append(_Name(None, name, file))

    def write(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        self._begin()
        file = self._file(name)
        new = bytes(data)
        end = start + len(new)
        assert start >= 0 and end <= len(file.data), f"{name} has no room reserved for bytes {start} to {end}"
        file.pending.append(_Write(start, bytes(file.data[start:end]), new))
        file.data[start:end] = new

    def truncate(self, name: str, size: int) -> None:
        self._begin()
        file = self._file(name)
        old = len(file.data)
        self._use(size - old)
        file.pending.append(_Resize(old, size, bytes(file.data[size:])))
        if size < old:
            del file.data[size:]
        else:
            file.data += bytes(size - old)

    def sync(self, name: str) -> None:
        self._begin()
        file = self._file(name)
        self._check_sync()
        file.pending.clear()

    def rename(self, old: str, new: str) -> None:
        self._begin()
        file = self._file(old)
        if new in self._files:
            self._used -= len(self._files[new].data)
        del self._files[old]
        self._files[new] = file
        self._pending.append(_Name(old, new, file))

    def remove(self, name: str) -> None:
        self._begin()
        self._used -= len(self._file(name).data)
        del self._files[name]
        self._pending.append(_Name(name, None, None))

    def sync_names(self) -> None:
        self._begin()
        self._check_sync()
        self._durable = dict(self._files)
        self._pending.clear()

    # Faults.

    def crash(self, random: Random) -> None:
        """Fail the power: `random` keeps, loses or tears each pending operation.

        In a quarter of the calls all have the same fate, which independent choices would hardly give."""
        fates = list(Fate)
        if random.randrange(4) == 0:
            fates = [random.choice(fates)]
        self.crash_with([random.choice(fates) for _ in range(self.pending())], random)

    def crash_with(self, fates: Sequence[Fate], random: Random) -> None:
        """Crash with the given fate of each of the `pending()` operations; `random` selects torn sectors."""
        assert len(fates) == self.pending()
        remaining = iter(fates)
        for file in self._living():
            file.settle(remaining, random)
        for change, fate in zip(self._pending, remaining, strict=True):
            if fate is not Fate.KEPT:
                continue
            if change.gone is not None:
                self._durable.pop(change.gone, None)
            if change.come is not None and change.file is not None:
                self._durable[change.come] = change.file
        self._restart()

    def pending(self) -> int:
        """The number of operations that a crash could undo."""
        return sum(len(file.pending) for file in self._living()) + len(self._pending)

    def outcomes(self, random: Random, most: int = 10, samples: int = 100) -> Iterator[Self]:
        """Copies of the disk after each possible crash; this disk does not change.

        Up to half of `most` pending operations, every combination of fates. Up to `most`, every subset kept
        with the others lost, and with the others torn. Beyond that, all kept, all lost, and `samples` random
        crashes."""
        pending = self.pending()
        choices: Iterator[tuple[Fate, ...]]
        if pending <= most // 2:
            choices = itertools.product(Fate, repeat=pending)
        elif pending <= most:
            choices = itertools.chain(
                itertools.product((Fate.KEPT, Fate.LOST), repeat=pending),
                itertools.product((Fate.KEPT, Fate.TORN), repeat=pending),
            )
        else:
            fates = list(Fate)
            drawn = [tuple(random.choice(fates) for _ in range(pending)) for _ in range(samples)]
            choices = iter([(Fate.KEPT,) * pending, (Fate.LOST,) * pending, *drawn])
        for choice in choices:
            disk = self.copy()
            disk.crash_with(choice, random)
            yield disk

    def copy(self) -> Self:
        """A copy of the disk, including pending operations."""
        twins = {id(file): file.copy() for file in self._living()}
        disk = type(self)(self.capacity_bytes)
        disk.__dict__.update(self.__dict__)
        disk._files = {name: twins[id(file)] for name, file in self._files.items()}
        disk._durable = {name: twins[id(file)] for name, file in self._durable.items()}
        disk._pending = [
            change._replace(file=twins[id(change.file)]) if change.file else change
            for change in self._pending
        ]
        return disk

    def flip(self, random: Random, name: str | None = None) -> Flip | None:
        """Flip one bit on the disk, in the given file or in any; None if there is no byte."""
        candidates = [name] if name is not None else self.names()
        total = sum(self.size(candidate) for candidate in candidates)
        if not total:
            return None
        place = random.randrange(total)
        for candidate in candidates:
            if place < self.size(candidate):
                bit = random.randrange(8)
                self._file(candidate).data[place] ^= 1 << bit
                return Flip(candidate, place, bit)
            place -= self.size(candidate)
        raise AssertionError("unreachable")

    def wipe(self) -> None:
        """Replace it with an empty disk."""
        self._durable = {}
        self._restart()

    def _restart(self) -> None:
        self._files = dict(self._durable)
        self._pending.clear()
        self._used = sum(len(file.data) for file in self._files.values())
        self._has_failed = False
        self.power_lost_before = None

    def _living(self) -> list[_File]:
        """Every file that has a name, or may have one after a crash."""
        found = {id(file): file for file in self._durable.values()}
        found.update((id(file), file) for file in self._files.values())
        found.update((id(change.file), change.file) for change in self._pending if change.file is not None)
        return list(found.values())

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def _begin(self) -> None:
        if self.operations == self.power_lost_before:
            raise PowerLoss
        self.operations += 1

    def _use(self, size: int) -> None:
        if size > 0 and self.capacity_bytes is not None and self._used + size > self.capacity_bytes:
            self.refusals += 1
            raise StorageFull(
                f"{self._used} of {self.capacity_bytes} bytes are used, {size} more were asked for"
            )
        self._used += size

    def _check_sync(self) -> None:
        self._has_failed = self._has_failed or self.fail_sync
        if self._has_failed:
            raise StorageFailed("the simulated disk fails to sync")

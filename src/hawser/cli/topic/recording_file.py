"""A recording: the messages of a topic in a file, as frames of one batch each; docs/formats/recording.md
defines the bytes.

Frames are appended and never changed. If the writer is killed, the file may end within a frame; all earlier
frames are complete.
"""

import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import msgspec

import hawser
from hawser.record.batch import BadBatch, Batch
from hawser.record.record import Record

__all__ = ["Message", "Origin", "RecordingReader", "RecordingWriter", "record_bytes"]

_MAGIC: Final = b"HAWSERrc"
_VERSION: Final = 1
_OPENING: Final = struct.Struct("<8sIII")  # magic, version, length of the origin, its checksum
_CRC: Final = struct.Struct("<I")
_FRAME: Final = struct.Struct("<IIIQQ")  # behind the checksum: length, partition, zero, first offset, lost
_HEADER_BYTES: Final = _CRC.size + _FRAME.size
_MOST_ORIGIN_BYTES: Final = 1 << 20
_MOST_BATCH_BYTES: Final = 64 << 20

_BATCH_RECORDS: Final = 1024
_BATCH_BYTES: Final = 1 << 20


class Message(NamedTuple):
    """A message with its place. `lost_before` counts the messages before it that are not recorded."""

    partition: int
    offset: int
    lost_before: int
    record: Record


class Origin(msgspec.Struct, frozen=True):
    """The source of a recording, and its start."""

    topic: str
    url: str
    settings: dict[str, Any]
    started_ns: int


class _Content(NamedTuple):
    """The state of a writer: the complete frames in the file, and the messages of the next frame.

    A signal may interrupt the writer between any two statements. A frame therefore counts from one assignment
    on; until then the same frame is written again at the same place.
    """

    end: int
    messages: int
    message_bytes: int
    lost: int
    waiting: list[Message]


class RecordingWriter:
    """Writes a new file. A message is in the file after `flush` or `close`.

    `messages`, `message_bytes` and `lost` count the content of the file. Full if the disk is full; flushed
    messages stay readable. The owner may read the file, and the group if it may read `like`.
    """

    def __init__(
        self, path: Path, topic: str, url: str, settings: dict[str, Any], like: Path | None = None
    ) -> None:
        self._path = path
        self._lost: dict[int, int] = {}
        self._waiting_bytes = 0
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise hawser.UsageError(f"{path} exists; remove it, or record to another file") from None
        except OSError as error:
            raise hawser.UsageError(f"{path} cannot be created: {error.strerror}") from error
        origin = msgspec.json.encode(Origin(topic, url, settings, time.time_ns()))
        opening = _OPENING.pack(_MAGIC, _VERSION, len(origin), zlib.crc32(origin)) + origin
        self._content = _Content(0, 0, 0, 0, [])
        try:
            _share_like(self._descriptor, like)
            self._write_at(0, opening)
        except BaseException:
            os.close(self._descriptor)
            path.unlink()
            raise
        self._content = _Content(len(opening), 0, 0, 0, [])

    @property
    def messages(self) -> int:
        return self._content.messages

    @property
    def waiting(self) -> int:
        """The number of added messages that are not written."""
        return len(self._content.waiting)

    @property
    def message_bytes(self) -> int:
        return self._content.message_bytes

    @property
    def lost(self) -> int:
        return self._content.lost

    def add(self, message: Message) -> None:
        """Add a message. UsageError if it is too large for a recording; it then counts as lost."""
        message = message._replace(lost_before=message.lost_before + self._lost.get(message.partition, 0))
        size = record_bytes(message.record)
        waiting = self._content.waiting
        if waiting:
            last = waiting[-1]
            follows = (last.partition, last.offset + 1) == (message.partition, message.offset)
            is_full = len(waiting) >= _BATCH_RECORDS or self._waiting_bytes + size > _BATCH_BYTES
            if not follows or message.lost_before or is_full:
                self._write_frame()
        if size > _BATCH_BYTES:
            self._add_alone(message)
        else:
            self._content.waiting.append(message)
            self._waiting_bytes += size
        self._lost.pop(message.partition, None)

    def flush(self) -> None:
        """Write the waiting messages; they survive a kill of this process."""
        self._write_frame()

    def close(self) -> None:
        """Flush and sync the file; the messages survive a stop of the machine."""
        try:
            self._write_frame()
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._unwritable(error) from error
        finally:
            os.close(self._descriptor)

    def _add_alone(self, message: Message) -> None:
        try:
            frame = _frame_of([message])
        except hawser.UsageError as error:
            self._lost[message.partition] = message.lost_before + 1
            raise hawser.UsageError(
                f"message {message.offset} of partition {message.partition} is too large for a recording "
                f"({error}); it is left out"
            ) from error
        # The frame is encoded, so no later flush can fail because of its size.
        self._content.waiting.append(message)
        self._write_frame(frame)

    def _write_frame(self, frame: bytes | None = None) -> None:
        """Write the waiting messages; `frame` is their frame if it is already encoded."""
        content = self._content
        if not content.waiting:
            return
        if frame is None:
            frame = _frame_of(content.waiting)
        self._write_at(content.end, frame)
        self._content = _Content(
            content.end + len(frame),
            content.messages + len(content.waiting),
            content.message_bytes + sum(len(each.record.value) for each in content.waiting),
            content.lost + content.waiting[0].lost_before,
            [],
        )
        self._waiting_bytes = 0

    def _write_at(self, place: int, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, place)
                place += written
                rest = rest[written:]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._content.end)
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> hawser.Full:
        return hawser.Full(
            f"{self._path} cannot be written: {error.strerror}. It holds {self.messages} messages that can "
            "be replayed. Make room, and record the rest to another file"
        )


def _frame_of(messages: list[Message]) -> bytes:
    """Encode the messages as one frame; UsageError if they are too large."""
    first = messages[0]
    batch = Batch.of([each.record for each in messages]).data
    fields = _FRAME.pack(len(batch), first.partition, 0, first.offset, first.lost_before)
    checksum = zlib.crc32(batch, zlib.crc32(fields))
    return b"".join((_CRC.pack(checksum), fields, batch))


def _share_like(descriptor: int, model: Path | None) -> None:
    """Give the file the group and modes of `model`; leave it to the owner if that is not permitted."""
    if model is None:
        return
    found = model.stat()
    with suppress(PermissionError):
        os.fchown(descriptor, -1, found.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & 0o660)


def record_bytes(record: Record) -> int:
    """The bytes of value, key and headers."""
    headers = sum(len(name) + len(value) for name, value in record.headers.items())
    return len(record.value) + len(record.key or b"") + headers


class RecordingReader:
    """Reads a recording. `cut_off` is set after reading if the last frame is incomplete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_off = False
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError:
            raise hawser.NotFound(f"no file {path}") from None
        except OSError as error:
            raise hawser.UsageError(f"{path} cannot be read: {error.strerror}") from error
        try:
            self.origin = self._read_origin()
        except hawser.HawserError:
            self._file.close()
            raise

    def _read_origin(self) -> Origin:
        opening = self._file.read(_OPENING.size)
        if len(opening) < _OPENING.size or not opening.startswith(_MAGIC):
            raise hawser.Corrupt(f"{self.path} is not a recording; `hawser topic record` creates recordings")
        _, version, length, checksum = _OPENING.unpack(opening)
        if version != _VERSION:
            raise hawser.UsageError(
                f"{self.path} is a recording of format {version}; this Hawser reads format {_VERSION}"
            )
        data = self._file.read(min(length, _MOST_ORIGIN_BYTES))
        try:
            if len(data) == length and zlib.crc32(data) == checksum:
                return msgspec.json.decode(data, type=Origin)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        raise hawser.Corrupt(f"{self.path} is damaged at byte {_OPENING.size}: its origin cannot be read")

    def messages(self) -> Iterator[Message]:
        """Every message, in order. Corrupt names the first damaged byte."""
        while header := self._file.read(_HEADER_BYTES):
            at = self._file.tell() - len(header)
            if len(header) < _HEADER_BYTES:
                self.cut_off = True
                return
            length, partition, zero, first, lost = _FRAME.unpack_from(header, _CRC.size)
            if length > _MOST_BATCH_BYTES or zero:
                raise self._damaged(at, "impossible header")
            data = self._file.read(length)
            if len(data) < length:
                self.cut_off = True
                return
            if zlib.crc32(data, zlib.crc32(header[_CRC.size :])) != _CRC.unpack_from(header)[0]:
                raise self._damaged(at, "checksum differs")
            try:
                records = list(Batch.read(data).records())
            except BadBatch as error:
                raise self._damaged(at, str(error)) from error
            for place, record in enumerate(records):
                yield Message(partition, first + place, 0 if place else lost, record)

    def _damaged(self, byte: int, reason: str) -> hawser.Corrupt:
        return hawser.Corrupt(
            f"{self.path} is damaged at byte {byte}: {reason}. The messages before it were read"
        )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""A recording: the messages of a topic in a file, batch by batch; docs/formats/recording.md has the bytes.

A recording is written from its beginning to its end and never changed. One whose writer was killed may end
within a frame; what lies before that is whole.
"""

import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

import msgspec

import hawser
from hawser.record.batch import BadBatch, Batch
from hawser.record.record import Record

__all__ = ["Message", "Origin", "RecordingReader", "RecordingWriter"]

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
    """A message and where it was; `lost_before` counts those that were overwritten before they were read."""

    partition: int
    offset: int
    lost_before: int
    record: Record


class Origin(msgspec.Struct, frozen=True):
    """What a recording was made of, and when."""

    topic: str
    url: str
    settings: dict[str, Any]
    started_ns: int


class RecordingWriter:
    """Writes a new file; what is added is there after `flush`, at the latest after `close`."""

    def __init__(self, path: Path, topic: str, url: str, settings: dict[str, Any]) -> None:
        try:
            self._file: BinaryIO = path.open("xb")
        except FileExistsError:
            raise hawser.UsageError(f"{path} exists; remove it, or record to another file") from None
        except OSError as error:
            raise hawser.UsageError(f"{path} cannot be made: {error.strerror}") from error
        origin = msgspec.json.encode(Origin(topic, url, settings, time.time_ns()))
        self._file.write(_OPENING.pack(_MAGIC, _VERSION, len(origin), zlib.crc32(origin)) + origin)
        self._waiting: list[Message] = []
        self._waiting_bytes = 0

    def add(self, message: Message) -> None:
        """Messages of a batch follow each other without a gap."""
        if self._waiting:
            last = self._waiting[-1]
            follows = (last.partition, last.offset + 1) == (message.partition, message.offset)
            is_full = len(self._waiting) >= _BATCH_RECORDS or self._waiting_bytes >= _BATCH_BYTES
            if not follows or message.lost_before or is_full:
                self._write()
        self._waiting.append(message)
        self._waiting_bytes += len(message.record.value)

    def flush(self) -> None:
        """Nothing to be lost with this process."""
        self._write()
        self._file.flush()

    def close(self) -> None:
        self._write()
        self._file.close()

    def _write(self) -> None:
        if not self._waiting:
            return
        first = self._waiting[0]
        batch = Batch.of([each.record for each in self._waiting]).data
        fields = _FRAME.pack(len(batch), first.partition, 0, first.offset, first.lost_before)
        checksum = zlib.crc32(batch, zlib.crc32(fields))
        self._file.write(b"".join((_CRC.pack(checksum), fields, batch)))
        self._waiting.clear()
        self._waiting_bytes = 0


class RecordingReader:
    """Reads a file; a context manager. `cut_off` tells after reading whether its last frame is not whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_off = False
        try:
            self._file: BinaryIO = path.open("rb")
        except FileNotFoundError:
            raise hawser.NotFound(f"there is no file {path}") from None
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
            raise hawser.Corrupt(f"{self.path} is no recording; `hawser topic record` makes them")
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
        """Every message in its order; Corrupt names the first byte that is not what was written."""
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
            f"{self.path} is damaged at byte {byte}: {reason}. What lies before it was read"
        )

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

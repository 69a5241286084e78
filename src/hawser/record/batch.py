"""A batch: records that a producer sends to one partition, stored in one entry of its log.

    0   format: 1 bare, 2 Arrow            u8
    1   compression: 0 none, 1 lz4, 2 zstd u8, only with Arrow
    2   columns of a bare body             u8, see batch_body.py
    3   length of the producer's id        u8
    4   records                            u32
    8   length of the body                 u32
    12  zero                               u32
    16  earliest timestamp                 i64
    24  latest timestamp                   i64
    32  incarnation of the producer        i64, from 1; 0 without one
    40  sequence of the batch              i64, from 1; 0 without a producer
    48  the producer's id, zeros up to a multiple of 8, the body

Integers are little-endian. A state machine needs only the header. Both bodies consist of the buffers of the
same Arrow columns: a bare body has nothing else, an Arrow body is an IPC message of them, with some 400 bytes
more (decision 0024). Both are read as Arrow without a copy.

`read` checks only the header; call `check` once for a batch from a client.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from hawser.errors import UsageError
from hawser.record import batch_body
from hawser.record.record import NO_STAMP, BadBatch, Record, Stamp
from hawser.record.rows import Records, Rows

__all__ = ["MAX_BATCH_BYTES", "MAX_RECORDS", "BadBatch", "Batch", "Compression", "Format", "Header"]

HEADER_BYTES: Final = 48
MAX_RECORDS: Final = 1 << 20
# The size of an entry less that of the longest transaction id.
MAX_BATCH_BYTES: Final = (64 << 20) - (1 << 16)
MAX_PRODUCER_BYTES: Final = 255

_FIELDS: Final = struct.Struct("<BBBBIIIqqqq")
_pack = _FIELDS.pack
_unpack = _FIELDS.unpack_from
_new = tuple.__new__


class Format(IntEnum):
    """The encoding of a batch's body."""

    BARE = 1
    ARROW = 2


class Compression(IntEnum):
    """The compression of an Arrow body's buffers."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2


# Plain numbers, for the path on which every batch is applied.
_BARE: Final = int(Format.BARE)
_ARROW: Final = int(Format.ARROW)
_MOST_COMPRESSION: Final = int(max(Compression))


class Header(NamedTuple):
    """The header of a batch. `body` is the offset of the body in the bytes the header was read from."""

    format: int
    compression: int
    columns: int
    records: int
    earliest_ns: int
    latest_ns: int
    producer: bytes
    incarnation: int
    sequence: int
    body: int

    @classmethod
    def read(cls, data: "bytes | bytearray | memoryview", start: int = 0) -> "Header":
        """The header of the batch that fills `data` from `start` on; BadBatch if it is invalid.

        The result depends on these bytes alone, not on the versions of libraries, so all replicas agree.
        """
        size = len(data) - start
        if size < HEADER_BYTES:
            raise BadBatch(f"a batch of {size} bytes is cut off within its header")
        (
            form, compression, columns, name, records, length, zero, earliest, latest, incarnation, sequence
        ) = _unpack(data, start)  # fmt: skip
        body = HEADER_BYTES + (name + 7 & ~7)
        if body + length != size or size > MAX_BATCH_BYTES:
            raise BadBatch(f"a batch of {size} bytes says that it has {body + length}")
        if not 0 < records <= MAX_RECORDS or earliest > latest or zero:
            raise BadBatch(
                f"the header of a batch is impossible: {records} records, {earliest} to {latest} ns"
            )
        if form == _BARE:
            if compression or length < batch_body.fixed_bytes(columns, records, earliest == latest):
                raise BadBatch(f"{records} records do not fit a bare body of {length} bytes")
        elif form != _ARROW or compression > _MOST_COMPRESSION or columns:
            raise BadBatch(f"there is no batch of format {form} with compression {compression}")
        if not _is_stamp(name, incarnation, sequence):
            raise BadBatch("a producer, its incarnation and a sequence from 1 come together or not at all")
        id_place, place = start + HEADER_BYTES, start + body
        producer = bytes(data[id_place : id_place + name]) if name else b""
        fields = (
            form, compression, columns, records, earliest, latest, producer, incarnation, sequence, place
        )  # fmt: skip
        # Takes half the time of cls(...).
        return _new(cls, fields)


def _is_stamp(name: int, incarnation: int, sequence: int) -> bool:
    return incarnation > 0 and sequence > 0 if name else incarnation == sequence == 0


def _encode(records: Records) -> tuple[int, int, int, list[bytes]]:
    """As `batch_body.encode`."""
    if len(records) == 1:
        value, key, headers, timestamp_ns = next(iter(records))
        if key is None and not headers:
            # Most single records, and most in transactions.
            return 0, timestamp_ns, timestamp_ns, batch_body.encode_only(value, timestamp_ns)
    rows = Rows.of(records)
    return batch_body.encode(rows.values, rows.keys, rows.headers, rows.timestamps)


class Batch:
    """An immutable batch; `data` are its bytes."""

    __slots__ = ("data", "header")

    def __init__(self, data: "bytes | memoryview", header: Header) -> None:
        self.data = data
        self.header = header

    @classmethod
    def read(cls, data: "bytes | memoryview") -> "Batch":
        """The batch in these bytes, with only its header checked; BadBatch if that is invalid."""
        return cls(data, Header.read(data))

    @classmethod
    def of(
        cls,
        records: Records,
        stamp: Stamp = NO_STAMP,
        compression: Compression = Compression.NONE,
    ) -> "Batch":
        """A batch of these records, at least one; bare unless Arrow or a compression is asked for."""
        if not records:
            raise UsageError("a batch has at least one record; there is nothing to send")
        if compression:
            return cls.of_arrow(cls.of(records).to_arrow(), stamp, compression)
        try:
            columns, earliest, latest, body = _encode(records)
        except (TypeError, ValueError, struct.error) as error:
            raise UsageError(
                f"a record cannot be written ({error}); value and key are bytes, headers map str to bytes, "
                "the timestamp is a 64-bit number of nanoseconds"
            ) from error
        fields = (_BARE, 0, columns, len(records), earliest, latest)
        return cls._assemble(fields, stamp, body)

    @classmethod
    def of_columns(
        cls,
        timestamps: Sequence[int],
        value_offsets: bytes,
        value_data: bytes,
        keys: Sequence[bytes | None],
        headers: Sequence[Mapping[str, bytes]],
        stamp: Stamp = NO_STAMP,
    ) -> "Batch":
        """A bare batch of at least one record, whose values are already in the buffers of a column."""
        columns, earliest, latest, body = batch_body.encode_columns(
            timestamps, value_offsets, value_data, keys, headers
        )
        fields = (Format.BARE, Compression.NONE, columns, len(timestamps), earliest, latest)
        return cls._assemble(fields, stamp, body)

    @classmethod
    def of_arrow(
        cls, data: Any, stamp: Stamp = NO_STAMP, compression: Compression = Compression.NONE
    ) -> "Batch":
        """A pyarrow.RecordBatch with the columns of `arrow.schema()` as a batch."""
        from hawser.record import arrow

        body, earliest, latest = arrow.encode(data, compression)
        fields = (Format.ARROW, compression, 0, data.num_rows, earliest, latest)
        return cls._assemble(fields, stamp, [body])

    @classmethod
    def bare_of_arrow(cls, data: Any, stamp: Stamp = NO_STAMP) -> "Batch":
        """A bare batch of a pyarrow.RecordBatch, which is smaller than an uncompressed Arrow batch."""
        from hawser.record import arrow

        columns, earliest, latest, body = arrow.encode_bare(data)
        fields = (Format.BARE, Compression.NONE, columns, data.num_rows, earliest, latest)
        return cls._assemble(fields, stamp, body)

    @classmethod
    def _assemble(
        cls, fields: tuple[int, int, int, int, int, int], stamp: Stamp, body: "list[Any]"
    ) -> "Batch":
        form, compression, columns, records, earliest, latest = fields
        producer, incarnation, sequence = stamp
        length = sum(map(len, body))
        name = len(producer)
        size = HEADER_BYTES + (name + 7 & ~7) + length
        if records > MAX_RECORDS or size > MAX_BATCH_BYTES:
            raise UsageError(
                f"{records} records of {length} bytes are too much for one batch, which has at most "
                f"{MAX_RECORDS} records and {MAX_BATCH_BYTES} bytes; send them as several"
            )
        if name > MAX_PRODUCER_BYTES:
            raise UsageError(f"a producer's id has at most {MAX_PRODUCER_BYTES} bytes, not {name}")
        if not _is_stamp(name, incarnation, sequence) or incarnation >> 63 or sequence >> 63:
            raise UsageError(f"{stamp} is no stamp; a producer counts incarnations and sequences from 1")
        head = _pack(
            form, compression, columns, name, records, length, 0, earliest, latest, incarnation, sequence
        )
        data = b"".join((head, producer, bytes(-name % 8), *body) if name else (head, *body))
        # Takes half the time of Header(...).
        header = _new(Header, (*fields, *stamp, size - length))
        return cls(data, header)

    @property
    def count(self) -> int:
        """The number of records."""
        return self.header.records

    @property
    def stamp(self) -> Stamp:
        header = self.header
        return Stamp(header.producer, header.incarnation, header.sequence)

    def stamped(self, stamp: Stamp) -> "Batch":
        """The same records with another stamp."""
        return self._assemble(self.header[:6], stamp, [memoryview(self.data)[self.header.body :]])

    def records(self) -> Iterator[Record]:
        """The records; raises BadBatch before the first if the body does not match the header."""
        header = self.header
        is_same_time = header.earliest_ns == header.latest_ns
        if header.format == _BARE and header.records == 1 and not header.columns and is_same_time:
            # All records that come one by one from a queue.
            return iter(
                (Record(batch_body.only_value(self.data, header.body), timestamp_ns=header.latest_ns),)
            )
        if header.format == _BARE:
            return batch_body.records(self._columns())
        from hawser.record import arrow

        return arrow.records(self.to_arrow())

    def to_arrow(self) -> Any:
        """A checked pyarrow.RecordBatch over the bytes of this batch; BadBatch if the body is invalid."""
        from hawser.record import arrow

        header = self.header
        if header.format == Format.BARE:
            return arrow.from_columns(self._columns())
        return arrow.decode(memoryview(self.data)[header.body :], header.records, header.compression)

    def _columns(self) -> batch_body.Columns:
        header = self.header
        same = header.earliest_ns if header.earliest_ns == header.latest_ns else None
        return batch_body.split(memoryview(self.data)[header.body :], header.columns, header.records, same)

    def check(self) -> None:
        """Raises BadBatch unless the body can be read and its timestamps match the header."""
        header = self.header
        is_same_time = header.earliest_ns == header.latest_ns
        if header.format == _BARE and not header.columns and is_same_time:
            batch_body.check_values(self.data, header.body, header.records)
            return
        if header.format == _BARE:
            columns = self._columns()
            batch_body.check(columns)
            if columns.timestamp_ns is not None:
                return
            times = batch_body.timestamps(columns)
        else:
            from hawser.record import arrow

            data = self.to_arrow()
            arrow.check_headers(data)
            times = arrow.timestamps(data)
        if (min(times), max(times)) != (header.earliest_ns, header.latest_ns):
            raise BadBatch("the timestamps of a batch are not those that its header says")

    def first_at(self, timestamp_ns: int) -> int | None:
        """The position, from 0, of the first record with this timestamp or a later one, or None."""
        if self.header.format == Format.BARE:
            times = batch_body.timestamps(self._columns())
        else:
            from hawser.record import arrow

            times = arrow.timestamps(self.to_arrow())
        return next((place for place, time in enumerate(times) if time >= timestamp_ns), None)

    def __repr__(self) -> str:
        header = self.header
        return (
            f"Batch({header.records} records, {Format(header.format).name.lower()}, {len(self.data)} bytes)"
        )

"""What a batch costs in bytes and time, bare and as Arrow, and what applying one costs.

    python bench/batch.py            # a table
    python bench/batch.py --json     # one line a figure, with the machine and its load

Contestants take turns in one run and medians are compared; times are those of the processor, which a shared
machine changes least. "arrow built" is what a producer without bare bodies would do: pyarrow arrays from
Python values, then an IPC message. "rows" are MessagePack rows, without a header.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from hawser.bench.machine import describe
from hawser.log.entry import Entry, Kind
from hawser.log.state.commands import GroupCommit, GroupJoin, encode_command
from hawser.log.state.machine import Machine
from hawser.log.state.topic import Topic
from hawser.record import arrow
from hawser.record.batch import Batch, Compression
from hawser.record.batch_body import make_records
from hawser.record.record import Record, Stamp

COUNTS = (1, 4, 16, 64, 256, 1024)
VALUE_BYTES = 100
STAMP = Stamp(b"producer", 1, 1)
ROUNDS = 15
LEAST_SECONDS_A_ROUND = 0.002
APPLIED = 20_000

Row = tuple[bytes, bytes | None, dict[str, bytes] | None, int]
encode_rows = msgspec.msgpack.Encoder().encode
decode_rows = msgspec.msgpack.Decoder(list[Row]).decode

Figure = dict[str, Any]
Contestants = Mapping[str, Callable[[], object]]


class Blocks(dict[str, bytes]):
    """Blocks in memory."""

    def write(self, name: str, data: bytes) -> None:
        self[name] = data

    def read(self, name: str) -> bytes:
        return self[name]


def records(count: int) -> list[Record]:
    """With values that do not compress to nothing, a short key, and a time each."""
    return [
        Record((b"%08d" % place) * (VALUE_BYTES // 8) + b"tail", b"key-%d" % (place % 16), {}, place)
        for place in range(count)
    ]


def arrow_built(items: list[Record]) -> bytes:
    """An Arrow batch straight from Python values."""
    kinds = arrow.schema().types
    arrays = [
        pa.array([record.key for record in items], kinds[0]),
        pa.array([record.value for record in items], kinds[1]),
        pa.nulls(len(items), kinds[2]),
        pa.array([record.timestamp_ns for record in items], pa.int64()).view(kinds[3]),
    ]
    data = pa.RecordBatch.from_arrays(arrays, schema=arrow.schema())
    return bytes(Batch.of_arrow(data, STAMP).data)


def medians(contestants: Contestants) -> dict[str, float]:
    """Microseconds of the processor a call of each; they take turns."""
    repeats = {}
    for name, call in contestants.items():
        call()
        start = time.process_time()
        call()
        repeats[name] = max(1, int(LEAST_SECONDS_A_ROUND / max(time.process_time() - start, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, call in contestants.items():
            start = time.process_time()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.process_time() - start) / repeats[name] * 1e6)
    return {name: statistics.median(each) for name, each in times.items()}


def rows_encoded(items: list[Record]) -> bytes:
    """The records as rows of MessagePack, without any header: what a bare body is held against."""
    return encode_rows([(value, key, headers or None, time) for value, key, headers, time in items])


def rows_listed(data: bytes) -> list[Record]:
    return list(make_records(*zip(*decode_rows(data), strict=True)))


def rows_to_arrow(data: bytes) -> Any:
    kinds = arrow.schema().types
    values, keys, headers, times = zip(*decode_rows(data), strict=True)
    columns = [pa.array(each, kind) for each, kind in zip((keys, values, headers), kinds, strict=False)]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array(times, pa.int64()).view(kinds[3])], schema=arrow.schema()
    )


def listed(batch: Batch) -> list[Record]:
    return list(batch.records())


def batch_figures() -> Iterator[Figure]:
    for count in COUNTS:
        items = records(count)
        bare = Batch.of(items, STAMP)
        whole = Batch.of_arrow(bare.to_arrow(), STAMP)
        lz4 = Batch.of(items, STAMP, Compression.LZ4)
        zstd = Batch.of(items, STAMP, Compression.ZSTD)
        sizes = {"bare": bare, "arrow": whole, "arrow lz4": lz4, "arrow zstd": zstd}
        figure: Figure = {name: len(batch.data) for name, batch in sizes.items()}
        rows = rows_encoded(items)
        yield {"what": "bytes", "records": count, **figure, "rows": len(rows)}
        encoding: Contestants = {
            "bare": partial(Batch.of, items, STAMP),
            "rows": partial(rows_encoded, items),
            "arrow built": partial(arrow_built, items),
            "arrow lz4": partial(Batch.of, items, STAMP, Compression.LZ4),
            "arrow zstd": partial(Batch.of, items, STAMP, Compression.ZSTD),
        }
        yield {"what": "encode, us", "records": count, **medians(encoding)}
        reading: dict[str, Callable[[], object]] = {
            name: partial(listed, batch) for name, batch in sizes.items()
        }
        reading["rows"] = partial(rows_listed, rows)
        yield {
            "what": "check, us",
            "records": count,
            **medians({name: each.check for name, each in sizes.items()}),
        }
        yield {"what": "read as records, us", "records": count, **medians(reading)}
        converting = {name: batch.to_arrow for name, batch in sizes.items()}
        converting["rows"] = partial(rows_to_arrow, rows)
        yield {"what": "read as Arrow, us", "records": count, **medians(converting)}


def apply_figures() -> Iterator[Figure]:
    values = records(1)
    batches = [
        Entry.make(1, place, Kind.BATCH, bytes(Batch.of(values, Stamp(b"producer", 1, place)).data))
        for place in range(1, APPLIED + 1)
    ]
    machine = Machine(Blocks())
    yield {"what": "apply, us", "kind": "batch", "hawser": applied(machine, batches)}
    join = encode_command(GroupJoin("group", "member"))
    machine.apply(Entry.make(1, APPLIED + 1, Kind.GROUP_JOIN, join))
    commits = [
        Entry.make(
            1,
            APPLIED + 1 + place,
            Kind.GROUP_COMMIT,
            encode_command(GroupCommit("group", "member", 1, place, place + 1)),
        )
        for place in range(1, APPLIED)
    ]
    yield {"what": "apply, us", "kind": "commit of a group", "hawser": applied(machine, commits)}
    saved = machine.save()
    yield {"what": "saved state, bytes", "batches": APPLIED, "hawser": len(saved.state)}
    topic = machine.part(Topic)
    looks = {
        "in the tail": lambda: topic.locate(APPLIED),
        "in a block that is remembered": lambda: topic.locate(1),
    }
    yield {"what": "locate, us", **medians(looks)}


def applied(machine: Machine, entries: list[Entry]) -> float:
    """Median microseconds an entry, over stretches of the log."""
    times = []
    step = len(entries) // ROUNDS
    for begin in range(0, step * ROUNDS, step):
        start = time.process_time()
        for entry in entries[begin : begin + step]:
            machine.apply(entry)
        times.append((time.process_time() - start) / step * 1e6)
    for entry in entries[step * ROUNDS :]:
        machine.apply(entry)
    return statistics.median(times)


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    as_json = parser.parse_args().json
    for figures in (batch_figures, apply_figures):
        for figure in figures():
            rounded = {
                name: round(value, 1) if isinstance(value, float) else value for name, value in figure.items()
            }
            if as_json:
                print(json.dumps({**rounded, "machine": describe()}))
            else:
                print("  ".join(f"{name}: {value}" for name, value in rounded.items()))


if __name__ == "__main__":
    main()

"""Records by their columns are the same records, and no object each."""

import gc

from hypothesis import given
from hypothesis import strategies as some

from hawser.cluster.client.client import records_of
from hawser.cluster.client.publish.batch import Item
from hawser.record.batch import Batch
from hawser.record.record import Record
from hawser.record.rows import Rows

TIMES = some.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)
RECORDS = some.builds(
    Record,
    some.binary(max_size=5),
    some.none() | some.binary(max_size=3),
    some.dictionaries(some.text(max_size=3), some.binary(max_size=3), max_size=2),
    some.sampled_from([0, 1]) | TIMES,
)
LISTS = some.lists(RECORDS, min_size=1, max_size=5)


@given(some.lists(some.tuples(LISTS, some.booleans()), min_size=1, max_size=4))
def test_however_they_are_joined_they_are_the_same(parts: list[tuple[list[Record], bool]]) -> None:
    flat = [record for part, _ in parts for record in part]
    joined = Rows.joined([Rows.of(part) if by_column else part for part, by_column in parts])
    assert list(joined) == flat
    assert len(joined) == len(flat)
    assert Batch.of(joined).data == Batch.of(flat).data
    assert list(Batch.of(joined).records()) == flat


@given(LISTS)
def test_they_count_the_same_bytes(records: list[Record]) -> None:
    assert Item(Rows.of(records), None, 1.0, 0.0).nbytes == Item(records, None, 1.0, 0.0).nbytes


def test_a_list_of_thousands_is_a_few_objects_to_the_collector() -> None:
    payloads, keys = [b"value"] * 10_000, [b"key"] * 10_000
    gc.collect()
    before = len(gc.get_objects())
    batch = Batch.of(Rows.joined([records_of(payloads, keys), records_of(payloads, None)]))
    assert len(gc.get_objects()) - before < 100
    assert batch.count == 20_000

"""Headers with a key that repeats, as Kafka's have them. Found by review.

The sink refused such rows, and the source made one header of them.
"""

from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hawser.record.batch import Batch, Compression
from hawser.record.batch_body import decode_header_pairs, decode_headers, encode_header_pairs, encode_headers
from hawser.spark.sink.options import Options
from hawser.spark.sink.rows import payloads, rows_of
from hawser.spark.source.columns import Chunk, Rows

KIND = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
PAIRS = st.lists(st.tuples(st.text(max_size=2), st.binary(max_size=40)), max_size=20)


@given(PAIRS)
def test_pairs_come_back_in_order_and_a_mapping_has_the_last(pairs: list[tuple[str, bytes]]) -> None:
    data = encode_header_pairs(pairs)
    assert decode_header_pairs(data) == pairs
    assert dict(decode_headers(data)) == dict(pairs)
    if len(dict(pairs)) == len(pairs):
        assert data == encode_headers(dict(pairs))


@pytest.mark.parametrize("count", [15, 16, 70_000])
def test_headers_of_every_size(count: int) -> None:
    """MessagePack has three kinds of maps."""
    headers = {str(number): b"" for number in range(count)}
    assert decode_header_pairs(encode_headers(headers)) == list(headers.items())
    twice = [*headers.items(), ("0", b"again")]
    assert decode_header_pairs(encode_header_pairs(twice)) == twice


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_rows_of_the_sink_are_rows_of_the_source(count: int, compression: Compression) -> None:
    """In batches of any size: small ones are put together by the source."""
    options = Options.of({"endpoints": "hawser://127.0.0.1:1", "topic": "t"}, streaming=False)
    headers: list[Any] = [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}, {"key": "a", "value": b"2"}]
    ]
    headers = (headers + [None, [{"key": "a", "value": b"3"}]] * count)[:count]
    values = [b"%d" % number for number in range(count)]
    written = pyarrow.record_batch({"value": values, "headers": pyarrow.array(headers, KIND)})
    (payload,) = payloads(rows_of(written, options), compression)
    batch = Batch.read(payload)
    batch.check()
    assert next(batch.records()).headers == {"a": b"2", "b": b""}
    plain = Chunk(Batch.of(list(batch.records())))
    rows = Rows("t", "u", 0, [(Chunk(batch), 0, count, 1), (plain, 0, count, 1 + count)])
    assert rows.headers().to_pylist()[:count] == headers
    assert rows.value().to_pylist() == values * 2

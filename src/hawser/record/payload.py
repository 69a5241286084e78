"""Messages as bytes-like objects, numpy arrays and Arrow data, without a copy where possible.

A received array or Arrow batch keeps the slot of its sample.
"""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from hawser.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer


__all__ = [
    "as_payload",
    "as_payloads",
    "array_layout",
    "arrow_bytes",
    "as_array",
    "as_arrow",
]


def as_payload(data: Any) -> "Buffer":
    """The bytes of `data`, without a copy where it has a contiguous buffer.

    Arrow record batches and tables become an Arrow IPC stream. Text, Python objects and arrays with gaps
    raise a UsageError that says how to get bytes.
    """
    if isinstance(data, bytes | bytearray):
        return data
    if isinstance(data, str):
        raise UsageError("a message is bytes, not str; encode it, as in text.encode()")
    if _is_arrow(data):
        return arrow_bytes(data)
    return _checked_buffer(data)


def as_payloads(items: Iterable[Any], encode: Callable[[Any], "Buffer"] | None) -> Iterable["Buffer"]:
    """The messages of a batch, encoded one by one on demand."""
    if type(items) is list and encode is None:  # nearly always, and for every batch
        return items
    if isinstance(items, str | bytes | bytearray | memoryview) or not hasattr(items, "__iter__"):
        raise UsageError(f"a batch is an iterable of messages, not one {type(items).__name__}")
    return items if encode is None else map(encode, items)


def _is_arrow(data: Any) -> bool:
    # A program with Arrow data has imported the module; other programs do not pay for it. While another
    # thread imports it, the module lacks its types, and no Arrow data exists.
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is None or not hasattr(pyarrow, "Table"):
        return False
    return isinstance(data, pyarrow.RecordBatch | pyarrow.Table)


def _checked_buffer(data: Any) -> "Buffer":
    kind = type(data).__name__
    if getattr(getattr(data, "dtype", None), "hasobject", False):
        raise UsageError("an array of Python objects has no bytes to share; give it a plain dtype first")
    try:
        view = memoryview(data)
    except TypeError:
        raise UsageError(
            f"a message is bytes-like, a numpy array or an Arrow batch, not {kind}; "
            "encode it, or say how with schema="
        ) from None
    except (ValueError, BufferError) as error:
        raise UsageError(f"this {kind} has no plain bytes ({error}); view it as one first") from error
    with view:
        if not view.c_contiguous:
            raise UsageError(
                f"this {kind} has gaps or another order in memory; use numpy.ascontiguousarray()"
            )
    return cast("Buffer", data)


def as_array(sample: "Buffer", dtype: Any = "u1", shape: Any = None) -> Any:
    """A read-only numpy array over the sample's bytes; one dimension unless `shape` is given."""
    numpy = _numpy()
    element = _element(numpy, dtype)
    try:
        array = numpy.frombuffer(sample, dtype=element)
        return array if shape is None else array.reshape(shape)
    except ValueError as error:
        length = memoryview(sample).nbytes
        raise UsageError(
            f"{length} bytes are not an array of {element} with shape {shape}: {error}; "
            "ask for the dtype and shape that were published"
        ) from error


def array_layout(shape: Any, dtype: Any) -> tuple[tuple[int, ...], Any, int]:
    """(shape, dtype, bytes) of an array to write; UsageError for invalid values."""
    element = _element(_numpy(), dtype)
    try:
        sizes = (int(shape),) if hasattr(shape, "__index__") else tuple(int(size) for size in shape)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{shape!r} is not the shape of an array; give a tuple of sizes") from error
    if any(size < 0 for size in sizes):
        raise UsageError(f"shape {sizes} has a negative size; give each dimension as it is")
    nbytes = element.itemsize
    for size in sizes:
        nbytes *= size
    return sizes, element, nbytes


def as_arrow(sample: "Buffer") -> Any:
    """The Arrow data in the sample: a RecordBatch if it holds one batch, otherwise a Table."""
    pyarrow = _pyarrow()
    try:
        with pyarrow.ipc.open_stream(pyarrow.py_buffer(sample)) as reader:
            batches = list(reader)
            schema = reader.schema
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UsageError(f"these bytes are not an Arrow IPC stream ({error}); read .data instead") from error
    return batches[0] if len(batches) == 1 else pyarrow.Table.from_batches(batches, schema=schema)


def arrow_bytes(data: Any) -> "Buffer":
    """A RecordBatch or Table as the bytes of an Arrow IPC stream."""
    pyarrow = _pyarrow()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    stream: Buffer = sink.getvalue()
    return stream


def _element(numpy: Any, dtype: Any) -> Any:
    try:
        element = numpy.dtype(dtype)
    except TypeError as error:
        raise UsageError(f"{dtype!r} is not a numpy dtype: {error}") from error
    if element.hasobject or element.itemsize == 0:
        raise UsageError(f"dtype {element} has no fixed bytes to share; use a plain one")
    return element


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise UsageError("arrays need numpy; run: pip install 'hawser-bus[numpy]'") from error
    return numpy


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise UsageError("Arrow data needs pyarrow; run: pip install 'hawser-bus[arrow]'") from error
    return pyarrow

"""Samples as numpy arrays and Arrow data, without a copy: each result keeps its sample's slot."""

from typing import TYPE_CHECKING, Any

from hawser.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["array_layout", "arrow_bytes", "as_array", "as_arrow"]


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
    """(shape, dtype, bytes) of an array to be written; UsageError for what no array can have."""
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

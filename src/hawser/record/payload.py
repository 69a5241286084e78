"""What may be published as it is: bytes-like objects, arrays and Arrow data."""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from hawser.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["as_payload", "as_payloads"]


def as_payload(data: Any) -> "Buffer":
    """The bytes of `data`, without a copy where it has a contiguous buffer.

    Arrow record batches and tables become an Arrow IPC stream. What has no plain bytes (text, Python
    objects, arrays with gaps) is a UsageError that says how to get them.
    """
    if isinstance(data, bytes | bytearray):
        return data
    if isinstance(data, str):
        raise UsageError("a message is bytes, not str; encode it, as in text.encode()")
    if _is_arrow(data):
        from hawser.record.arrays import arrow_bytes

        return arrow_bytes(data)
    return _checked_buffer(data)


def as_payloads(items: Iterable[Any], encode: Callable[[Any], "Buffer"] | None) -> Iterable["Buffer"]:
    """The messages of a batch as `publish` takes them, encoded one by one as they are asked for."""
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

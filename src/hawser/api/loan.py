"""Loans as numpy arrays: a slot of the topic to write into, published by leaving the `with` block.

Invariant: after the publish nothing can write to the slot. A view that could write is found before it, and
then nothing is published. `Loan` itself, the plain buffer, is native.
"""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

from hawser.errors import UsageError
from hawser.record.record import Receipt

if TYPE_CHECKING:
    from hawser.memory import Loan

__all__ = ["ArrayLoan"]

# References to a lent array while its block ends: ours, the block's own name, and the call that counts.
_ARRAY_REFERENCES: Final = 3
# References to its private base: ours, the array's, and the call that counts.
_BASE_REFERENCES: Final = 3


class ArrayLoan:
    """A slot as a numpy array: `with topic.loan_array(shape, dtype) as array`.

    Leaving the block publishes it; the array stays readable and becomes read-only. Views of the array,
    or further references to it, that are alive at the end raise BufferError, and nothing is published."""

    __slots__ = ("_loan", "_timeout", "_shape", "_dtype", "_base", "_array")

    _base: Any
    _array: Any

    def __init__(self, loan: "Loan", timeout: float | None, shape: Any, dtype: Any) -> None:
        self._loan = loan
        self._timeout = timeout
        self._shape = shape
        self._dtype = dtype

    @property
    def receipt(self) -> Receipt | None:
        """The receipt once the block has ended well; None before, and if nothing was published."""
        return cast("Receipt | None", self._loan.receipt)

    def _seal(self) -> None:
        """Make the array read-only; BufferError if something else could still write."""
        counts = (sys.getrefcount(self._base), sys.getrefcount(self._array))
        if counts[0] > _BASE_REFERENCES or counts[1] > _ARRAY_REFERENCES:
            raise BufferError(
                "something besides the name of the block still refers to the array of this loan (a view, a "
                "tensor, a second name?), so nothing was published; let go of it before the block ends"
            )
        self._array.setflags(write=False)
        self._base.setflags(write=False)

    def publish(self, timeout: float | None = None) -> Receipt:
        """Publish what `_seal` closed. The slot is kept for as long as the array is."""
        return cast("Receipt", self._loan._publish_keeping_views(timeout))

    def drop(self) -> None:
        """Give the slot back, unless it is published; what views are left stay valid."""
        self._loan.drop()
        # The user's array alone decides from here on how long the slot is kept.
        self._base = self._array = None

    def __enter__(self) -> Any:
        import numpy

        if getattr(self, "_array", None) is not None:
            raise UsageError("this loan has its block already; take a new one")
        self._base = numpy.frombuffer(cast("Any", self._loan), dtype=numpy.uint8)
        # Made by reshape so that every view of it refers to the base, whose references are counted.
        self._array = self._base.view(self._dtype).reshape(self._shape)
        return self._array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._seal()
                self.publish(self._timeout)
        finally:
            self.drop()

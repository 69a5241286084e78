"""Spark: the source of `format("hawser")`, sessions, and the pipelines.

PySpark is imported when something of it is asked for, not with this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hawser.spark.runtime.listener import listen
    from hawser.spark.runtime.session import session

__all__ = ["listen", "session"]

_HOMES: Final = {"listen": "hawser.spark.runtime.listener", "session": "hawser.spark.runtime.session"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""Types that threads may use at any time."""

from typing import Any

import msgspec

__all__ = ["described"]


def described(kind: type[Any]) -> type[Any]:
    """The same type, with the description that msgspec keeps of it.

    msgspec makes the description when a type is first used, and a second thread that uses the type before the
    description is complete crashes the process. A module that passes a type to `msgspec.convert` or to
    `decode(type=...)` calls this when it is imported; a module-level decoder does the same.
    """
    msgspec.msgpack.Decoder(kind)
    return kind

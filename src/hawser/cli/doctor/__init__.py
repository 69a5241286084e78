"""`hawser doctor`: checks of the host, the domain, the cluster and Spark. Each check yields a Finding."""

from typing import Literal

import msgspec

__all__ = ["Finding"]


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check, and advice."""

    check: str
    verdict: Literal["ok", "warn", "fail"]
    finding: str
    advice: str = ""

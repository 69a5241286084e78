"""What a check of `hawser doctor` says."""

from typing import Literal

import msgspec

__all__ = ["Finding"]


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check, and what to do about it."""

    check: str
    verdict: Literal["ok", "warn", "fail"]
    finding: str
    advice: str = ""

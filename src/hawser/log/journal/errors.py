"""Errors of a journal."""

from hawser.errors import Corrupt, NotFound, Rejected, SettingsMismatch

__all__ = ["BadSnapshot", "Damaged", "Gone", "NotFormatted", "OtherVersion"]


class NotFormatted(NotFound):
    """The directory has no journal."""


class OtherVersion(SettingsMismatch):
    """The journal has a format that this version does not know."""


class Damaged(Corrupt):
    """Bytes that were synced are missing or changed, at `byte` of `file`; `index` is the first entry
    affected, or 0."""

    def __init__(self, file: str, byte: int, index: int, reason: str) -> None:
        entry = f" (entry {index})" if index else ""
        super().__init__(
            f"{file} is damaged at byte {byte}{entry}: {reason}. Nothing was changed. Remove this member's "
            f"files and let it fetch a snapshot; look after the disk first."
        )
        self.file = file
        self.byte = byte
        self.index = index
        self.reason = reason


class Gone(NotFound):
    """Files of this snapshot were replaced or removed; begin a new one."""


class BadSnapshot(Rejected, ValueError):
    """The received pieces are not a snapshot of this shard; the log is unchanged."""

"""What can be wrong with a journal, told to whoever has to mend it."""

from hawser.errors import Corrupt, NotFound, Rejected, SettingsMismatch

__all__ = ["BadSnapshot", "Damaged", "Gone", "NotFormatted", "OtherVersion"]


class NotFormatted(NotFound):
    """There is no journal here."""


class OtherVersion(SettingsMismatch):
    """The journal was written in a format that this version does not know."""


class Damaged(Corrupt):
    """Bytes that were once on disk are not there any more, or are others.

    `file` and `byte` say where, `index` which entry is the first one concerned (0 if none is), `reason` what
    was found.
    """

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
    """What this snapshot consisted of was replaced or removed; begin with a new one."""


class BadSnapshot(Rejected, ValueError):
    """The pieces received are not a snapshot of this shard; the log is as it was."""

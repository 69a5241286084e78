"""The log on disk: segments of entries, a promise, checkpoints. Read `journal.py` first, then
`recovery.py`."""

from hawser.log.journal.checkpoints import Checkpoint
from hawser.log.journal.errors import BadSnapshot, Damaged, Gone, NotFormatted, OtherVersion
from hawser.log.journal.installation import Installation
from hawser.log.journal.journal import Journal, Settings, Sync
from hawser.log.journal.snapshot import Piece, Snapshot
from hawser.log.journal.storage import Storage, StorageFailed, StorageFull

__all__ = [
    "BadSnapshot",
    "Checkpoint",
    "Damaged",
    "Gone",
    "Installation",
    "Journal",
    "NotFormatted",
    "OtherVersion",
    "Piece",
    "Settings",
    "Snapshot",
    "Storage",
    "StorageFailed",
    "StorageFull",
    "Sync",
]

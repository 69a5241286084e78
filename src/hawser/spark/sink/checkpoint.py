"""What a micro-batch is made of, as Spark notes it in the checkpoint before it runs the batch.

The file `offsets/N` holds a version, a line about the batch and a line for each source: where the batch ends.
A batch that is run again has the same file. Spark plans a batch anew where the file is missing.
"""

import hashlib
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["source_of"]

_DIGEST_BYTES: Final = 16
# The version, and what Spark notes of the batch, among it the time.
_HEAD_LINES: Final = 2


def source_of(checkpoint: str | None, number: int) -> bytes:
    """A digest of where this batch ends in each source; empty if this process cannot read the checkpoint as a
    file, or there is none."""
    if checkpoint is None:
        return b""
    location = urlsplit(checkpoint)
    if location.scheme not in ("", "file"):
        return b""
    path = Path(unquote(location.path) if location.scheme else checkpoint, "offsets", str(number))
    try:
        lines = path.read_bytes().splitlines()[_HEAD_LINES:]
    except OSError:
        return b""
    return hashlib.sha256(b"\n".join(lines)).digest()[:_DIGEST_BYTES] if lines else b""

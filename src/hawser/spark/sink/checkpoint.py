"""The sources of a micro-batch, as Spark notes them in the checkpoint before it runs the batch.

The file `offsets/N` holds a version, a line about the batch and a line for each source: where the batch ends.
A batch that is run again has the same file. Spark plans a batch anew where the file is missing.

A source of files ends at a number, `{"logOffset":M}`. The file `sources/S/M` lists the files that source S
found for that number, one a line. Every few numbers Spark writes `sources/S/M.compact` instead, which also
lists earlier files. S is the position of the source in the query, or its name; a name precedes the number,
with a colon.
"""

import hashlib
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["source_of"]

_DIGEST_BYTES: Final = 16
# The version line, and the line with the batch's metadata, such as its time.
_HEAD_LINES: Final = 2
_END_OF_FILES: Final = re.compile(rb'(?:([^:{]+):)?\{"logOffset":(\d+)\}')


def source_of(checkpoint: str | None, number: int) -> bytes:
    """A digest of where this batch ends in each source, and of the files there if it is a source of files;
    empty if this process cannot read the checkpoint as a file, or there is none."""
    if checkpoint is None:
        return b""
    location = urlsplit(checkpoint)
    if location.scheme not in ("", "file"):
        return b""
    path = Path(unquote(location.path) if location.scheme else checkpoint)
    try:
        ends = (path / "offsets" / str(number)).read_bytes().splitlines()[_HEAD_LINES:]
        files = [_files(path / "sources", place, end) for place, end in enumerate(ends)]
    except OSError:
        return b""
    if not ends or any(each == [] for each in files):
        return b""
    lines = ends + [line for each in files for line in each or ()]
    return hashlib.sha256(b"\n".join(lines)).digest()[:_DIGEST_BYTES]


def _files(sources: Path, place: int, end: bytes) -> list[bytes] | None:
    """What a source of files lists at this end, whatever the order; None if it is another source."""
    matched = _END_OF_FILES.fullmatch(end)
    if matched is None:
        return None
    name, number = matched.groups()
    listed = sources / (str(place) if name is None else name.decode()) / number.decode()
    if not listed.exists():
        listed = listed.with_name(f"{listed.name}.compact")
    mark = b'"batchId":%s}' % number
    with listed.open("rb") as lines:
        return sorted(line.rstrip() for line in lines if mark in line)

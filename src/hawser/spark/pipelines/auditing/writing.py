"""The document in its two forms."""

from pathlib import Path

import msgspec

from hawser.spark.pipelines.auditing.document import Document
from hawser.spark.pipelines.auditing.report import page_of
from hawser.spark.pipelines.paper import put

__all__ = ["write"]


def write(directory: Path, document: Document) -> Path:
    """Write `audit.json` and `audit.html`, each replaced as a whole; where the page is."""
    put(directory / "audit.json", msgspec.json.format(msgspec.json.encode(document), indent=1))
    page = directory / "audit.html"
    put(page, page_of(document).encode())
    return page

"""Logs of the daemons on standard error: a JSON object a line, or plain text for people."""

import json
import logging
import sys
import time
from typing import Any, Final

__all__ = ["set_up_logging"]

_SECOND: Final = "%Y-%m-%dT%H:%M:%S"
_PLAIN: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class _JsonLines(logging.Formatter):
    """time, level, logger, message, and the traceback of an error."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": f"{time.strftime(_SECOND, time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_logging(level: str, style: str) -> None:
    """For a process of its own: everything under `hawser` goes out, others from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if style == "json" else logging.Formatter(_PLAIN))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("hawser").setLevel(level.upper())
    # Python's own warnings, too: whoever reads the log reads lines of one kind.
    logging.captureWarnings(True)

"""What Spark says when something fails, cut down to what a person needs. All of it is in the log."""

import re
from typing import Final

from pyspark.errors import PySparkException

from hawser import errors
from hawser.errors import HawserError, Unavailable

__all__ = ["failure_of"]

# An error of Hawser, raised in one of Spark's Python processes, at the end of a traceback.
_OURS: Final = re.compile(r"hawser\.errors\.(?P<kind>\w+): (?P<text>[^\n]+)")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+(?:Exception|Error): )?(?P<text>.+)$", re.MULTILINE)
_CLASS: Final = re.compile(r"^(?:\([\w.$]+\) )?(?:[\w.$]+(?:Exception|Error): )*")


def failure_of(error: PySparkException, faults: list[str]) -> HawserError:
    """The error to raise for it: the one of Hawser at its root, if there is one."""
    told = "\n".join([*faults, str(error)])
    ours = _OURS.search(told)
    if ours is not None:
        kind = getattr(errors, ours["kind"], HawserError)
        assert issubclass(kind, HawserError)
        return kind(ours["text"].strip())
    if "StatusCode.UNAVAILABLE" in told or "Connection refused" in told:
        return Unavailable("Spark is gone; run the pipeline again, it goes on where it was")
    causes = _CAUSE.findall(told)
    text = causes[-1] if causes else next(line for line in told.splitlines() if line.strip())
    return HawserError(f"Spark: {_CLASS.sub('', text.strip())}")

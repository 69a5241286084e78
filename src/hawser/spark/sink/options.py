"""The options of the sink, checked as a whole before anything else happens.

They carry the names they have in Spark's sink for Kafka, or in that for Delta. None of them is a secret.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

from hawser.cluster.client.client import addresses_of
from hawser.errors import UsageError
from hawser.transaction.identity import CLAIMS

__all__ = ["Options"]

_NAMES: Final = (
    "endpoints",
    "topic",
    "queue",
    "valueFormat",
    "txnAppId",
    "txnVersion",
    "orphanSeconds",
)
_KNOWN: Final = {name.lower(): name for name in _NAMES}
# Options that Spark adds.
_CHECKPOINT: Final = "checkpointlocation"
_OF_SPARK: Final = frozenset({_CHECKPOINT, "queryname"})
_FORMATS: Final = ("raw", "json", "msgpack", "arrow")
# Longer than a broken query should wait.
_ORPHAN_SECONDS: Final = 7 * 86_400
_APPLICATION_BYTES: Final = 200


class Options(NamedTuple):
    """The checked options. Without a topic or queue each row names its topic; without an application the
    query is one by itself. `version` is the number of a batch that is written by itself. `checkpoint` is
    where a stream has its checkpoint, if it was given one."""

    endpoints: str
    topic: str | None
    queue: str | None
    value_format: str
    application: str | None
    version: int | None
    orphan_seconds: int
    checkpoint: str | None

    @property
    def is_typed(self) -> bool:
        return self.value_format != "raw"

    @classmethod
    def of(cls, given: Mapping[str, str], *, streaming: bool) -> "Options":
        """Raise UsageError for the first wrong option, saying what to do instead."""
        asked = _recognised(given)
        if "topic" in asked and "queue" in asked:
            raise UsageError("topic and queue exclude each other; give one of them")
        version = _number(asked, "txnVersion", 0)
        if streaming and version is not None:
            raise UsageError("a stream counts its batches itself: leave txnVersion out")
        if not streaming and (version is None) == ("txnAppId" in asked):
            raise UsageError(
                "a batch is written once under one name with both txnAppId and txnVersion; give both, or none"
            )
        orphan_seconds = _number(asked, "orphanSeconds", 1)
        return cls(
            endpoints=_endpoints(asked),
            topic=_name(asked, "topic"),
            queue=_name(asked, "queue"),
            value_format=_format(asked),
            application=_application(asked),
            version=version,
            orphan_seconds=_ORPHAN_SECONDS if orphan_seconds is None else orphan_seconds,
            checkpoint=next((each for name, each in given.items() if name.lower() == _CHECKPOINT), None),
        )


def _recognised(given: Mapping[str, str]) -> dict[str, str]:
    """By the names as they are written in the documentation."""
    asked = {}
    for name, value in given.items():
        if name.lower() in _OF_SPARK:
            continue
        if name.lower() not in _KNOWN:
            near = get_close_matches(name.lower(), _KNOWN, 1)
            hint = f"did you mean {_KNOWN[near[0]]}?" if near else f"there are {', '.join(_NAMES)}"
            if name.lower() == "path":
                hint = 'name the topic with option("topic", ...), and give save() or start() no path'
            raise UsageError(f"the sink hawser has no option {name!r}; {hint}")
        asked[_KNOWN[name.lower()]] = value
    return asked


def _endpoints(asked: dict[str, str]) -> str:
    endpoints = asked.get("endpoints", "").strip()
    if not endpoints:
        hint = "" if asked else '. CREATE TABLE loses options; write with df.write.format("hawser")'
        raise UsageError(f'the sink needs option("endpoints", "hawser://host:port,..."){hint}')
    if endpoints.startswith("shm://"):
        raise UsageError(
            "the sink writes in transactions, which shared memory does not have; give the endpoints of a "
            "cluster, hawser://host:port,..."
        )
    addresses_of(endpoints)
    return endpoints


def _name(asked: dict[str, str], which: str) -> str | None:
    name = asked.get(which)
    if name is not None and not name.strip():
        raise UsageError(f"{which} is empty; name one, or leave it out and give rows a column topic")
    return None if name is None else name.strip()


def _format(asked: dict[str, str]) -> str:
    text = asked.get("valueFormat", _FORMATS[0]).strip().lower()
    if text not in _FORMATS:
        raise UsageError(f"valueFormat={text!r} is not one of {', '.join(_FORMATS)}")
    return text


def _application(asked: dict[str, str]) -> str | None:
    application = asked.get("txnAppId")
    if application is not None and not 0 < len(application.encode()) <= _APPLICATION_BYTES:
        raise UsageError(f"txnAppId has 1 to {_APPLICATION_BYTES} bytes")
    if application is not None and application.encode().startswith(CLAIMS):
        raise UsageError(f"txnAppId={application!r} begins as the name of a claim does; give it another one")
    return application


def _number(asked: dict[str, str], name: str, least: int) -> int | None:
    text = asked.get(name)
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9]{1,18})\s*", text)
    if found is None or int(found[1]) < least:
        raise UsageError(f"{name}={text!r} is not a whole number from {least} on, of at most 18 digits")
    return int(found[1])

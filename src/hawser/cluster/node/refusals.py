"""The answer to a request that a leader refuses."""

from hawser.cluster.wire import Code, Failed
from hawser.log.protocol.events import Reason

__all__ = ["refusal"]

_REFUSALS = {
    Reason.NOT_LEADER: (Code.NOT_LEADER, "this node does not lead the shard", "none"),
    Reason.BUSY: (Code.BUSY, "the leader cannot take writes just now; ask again", "none"),
    Reason.FULL: (Code.FULL, "the leader's disk is full; free some space or trim topics", "none"),
    Reason.TOO_LARGE: (Code.BAD_REQUEST, "the entry is too large; send less at once", "none"),
    Reason.UNSUPPORTED: (Code.BAD_REQUEST, "this node does not know this kind of entry", "none"),
    Reason.UNKNOWN: (Code.UNKNOWN, "the leader was deposed before a majority had the entry", "unknown"),
}


def refusal(reason: Reason) -> Failed:
    code, text, outcome = _REFUSALS[reason]
    return Failed(code, text, reason not in (Reason.TOO_LARGE, Reason.UNSUPPORTED), outcome)  # type: ignore[arg-type]

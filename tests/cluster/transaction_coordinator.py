"""What a coordinator of transactions keeps on disk, and does with it after it was killed."""

from pathlib import Path
from typing import Final

import hawser
from hawser.xa import XAError, Xid
from tests.cluster.transaction_scene import Notes
from tests.support.lines import Lines, whole_lines

__all__ = ["Decisions", "complete", "xid_of"]

_FORMAT: Final = 77


class Decisions:
    """The log of a coordinator: what it began, in two phases or alone in one, what it decided to commit, and
    what is over."""

    def __init__(self, file: Path) -> None:
        self._lines = Lines(file)
        lines = [line.decode().split() for line in whole_lines(file)]
        self.begun = [identity for deed, identity in lines if deed in ("begin", "alone")]
        self.decided = {identity for deed, identity in lines if deed == "commit"}
        done = {identity for deed, identity in lines if deed in ("over", "alone")}
        self.unfinished = [identity for identity in self.begun if identity not in done]

    def write(self, deed: str, identity: str) -> None:
        self._lines.write(f"{deed} {identity}".encode())

    def close(self) -> None:
        self._lines.close()


def xid_of(identity: str) -> Xid:
    return Xid(_FORMAT, identity.encode(), b"hawser")


def complete(bus: hawser.Bus, decisions: Decisions, notes: Notes) -> int:
    """What a coordinator does that was killed: commit what it has decided, roll back the rest; how many it
    found in doubt. What it had decided was prepared; so if nobody knows it any more, it was committed. What
    it had not decided may be prepared only now, by a request that was on its way: so this is done again."""
    prepared = {xid.global_id.decode() for xid in bus.xa.recover() if xid.format == _FORMAT}
    in_doubt = prepared.intersection(decisions.begun)
    for identity in in_doubt - decisions.decided:
        bus.xa.rollback(xid_of(identity))
    for identity in decisions.unfinished:
        is_decided = identity in decisions.decided
        if is_decided:
            try:
                bus.xa.commit(xid_of(identity))
            except XAError as error:
                if error.code != "not-found":
                    raise
        notes.write("end", id=identity, state="committed" if is_decided else "aborted")
        decisions.write("over", identity)
    return len(in_doubt)

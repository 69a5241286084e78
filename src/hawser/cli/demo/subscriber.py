"""A subscriber of the demo, a process of its own: python -m hawser.cli.demo.subscriber ASSIGNMENT."""

import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import msgspec

import hawser
from hawser.cli.demo.ledger import Assignment, Control, Note, Notebook, Numbers, Phase
from hawser.cli.demo.payload import Origin, read_payload

_WAIT_SECONDS: Final = 0.1
_NAP_EVERY: Final = 400
_NAP_STEP_SECONDS: Final = 0.01

# How each kind subscribes.
KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "reliable": {"reliable": True},
    "slow": {},
    "group": {"group": "committed"},
    "history": {"history": 512},
    "durable": {"reliable": "durable"},
}
# Samples still held when the next one is taken, so that most kills find some; a kept position would wait
# for them.
_HELD: Final = {"plain": 4, "reliable": 2, "slow": 1, "group": 0, "history": 8, "durable": 0}


class Reader:
    """Checks every message and notes it."""

    def __init__(self, assignment: Assignment, base: int) -> None:
        self._notebook = Notebook(assignment.file("note"))
        self._gaps = Numbers(assignment.file("gaps"))
        self._newest: dict[int, Origin] = {}
        self.note = Note(base, base, base, 0, 0, 0, 0, 0)
        self._notebook.write(self.note)

    def read(self, sample: hawser.Sample) -> None:
        """Note this message; whoever is killed later has had it."""
        note, lost = self.note, sample.lost_before
        found = read_payload(sample.data)
        fault = found is None or sample.offset != note.position + 1 + lost
        checksum = 0
        if found is not None:
            origin, checksum = found
            fault = fault or not self._follows(origin, lost)
            self._newest[origin.publisher] = origin
        if lost:
            self._gaps.append(note.position + 1, note.position + lost)
        self.note = Note(
            note.base,
            sample.offset,
            note.position,
            note.received + 1,
            note.missed + lost,
            (note.digest + checksum) % (1 << 64),
            note.faults + fault,
            0,
        )
        self._notebook.write(self.note)

    def finish(self) -> None:
        self._notebook.write(self.note._replace(finished=1))

    def _follows(self, origin: Origin, lost: int) -> bool:
        """Whether this message comes next of its publisher, as far as one can know after a loss."""
        if lost:
            self._newest = {}
        last = self._newest.get(origin.publisher)
        if last is None:
            return True
        if origin.run == last.run:
            return origin.number == last.number + 1
        return origin.run > last.run and origin.number == 0


def _nap(topic: hawser.Topic[Any], reader: Reader, control: Control, assignment: Assignment) -> None:
    """Read nothing until something was overwritten, so that losses are certain; not beyond the run."""
    ring = topic.info().ring
    while control.phase == Phase.RUN and not assignment.orphaned():
        if topic.info().head - reader.note.position > ring:
            break
        time.sleep(_NAP_STEP_SECONDS)


def run(assignment: Assignment) -> None:
    """Read until told to drain and there is no more, noting every message."""
    control = Control(Path(assignment.directory))
    options = dict(KINDS[assignment.kind])
    if "group" in options:
        options["group"] = assignment.name
    with hawser.connect(assignment.url, name=assignment.name) as bus:
        topic = bus.topic(assignment.topic, create=False)
        subscription = topic.subscribe(**options)
        holding: deque[hawser.Sample] = deque()
        reader = Reader(assignment, subscription.position - subscription.missed)
        while not assignment.orphaned():
            # Looked at first: what was published before it is found by the take.
            draining = control.phase == Phase.DRAIN
            sample = subscription.take(_WAIT_SECONDS)
            if sample is None:
                if draining and reader.note.position >= control.final_head:
                    break
                continue
            reader.read(sample)
            holding.append(sample)
            if assignment.kind == "slow" and reader.note.received % _NAP_EVERY == 0:
                _nap(topic, reader, control, assignment)
            if len(holding) > _HELD[assignment.kind]:
                holding.popleft().release()
            if "group" in options:
                subscription.commit()
        else:
            return
        reader.finish()


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Assignment))

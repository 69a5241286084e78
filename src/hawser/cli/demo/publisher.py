"""A publisher of the demo, a process of its own: python -m hawser.cli.demo.publisher ASSIGNMENT."""

import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

import hawser
from hawser.cli.demo.ledger import Assignment, Control, Numbers, Phase
from hawser.cli.demo.payload import PayloadMaker

# Most of each turn passes with a loan open, so that most kills hit one.
_TURN_SECONDS: Final = 0.004
# Bounds one wait for a reliable subscriber, so that the phase is looked at.
_FULL_SECONDS: Final = 0.2


def run(assignment: Assignment) -> None:
    """Publish until told to stop, noting every receipt."""
    control = Control(Path(assignment.directory))
    receipts = Numbers(assignment.file("receipts"))
    maker = PayloadMaker(assignment.index, assignment.run)
    number = 0
    with hawser.connect(assignment.url, name=assignment.name) as bus:
        publisher = bus.topic(assignment.topic, create=False).publisher()
        start = time.monotonic()
        while control.phase == Phase.RUN and not assignment.orphaned():
            turn = time.monotonic() + _TURN_SECONDS
            # Bounded, so that one that was held up does not flood the others afterwards.
            due = min((turn - start) * assignment.rate - number, 2 * _TURN_SECONDS * assignment.rate + 1)
            if due < 1:
                time.sleep(_TURN_SECONDS)
            for place in range(int(due)):
                offset = _publish(publisher, maker.make(number), turn if place == 0 else 0.0)
                if offset is None:
                    break
                receipts.append(offset)
                number += 1


def _publish(publisher: "hawser.Publisher[Any]", payload: bytes, pause_until: float) -> int | None:
    """The offset it has now; None if a reliable subscriber was in the way for too long."""
    try:
        if not pause_until:
            return publisher.publish(payload, timeout=_FULL_SECONDS).first_offset
        loan = publisher.loan(len(payload), timeout=_FULL_SECONDS)
        with loan as buffer:
            buffer[:] = payload
            time.sleep(max(0.0, pause_until - time.monotonic()))
        return None if loan.receipt is None else loan.receipt.first_offset
    except hawser.Full:
        return None


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Assignment))

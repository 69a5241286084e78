"""A publisher of the demo: python -m hawser.demo.programs.publisher ASSIGNMENT."""

import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

import hawser
from hawser.demo.messages import PayloadMaker
from hawser.demo.programs.ledger import Assignment, Control, Receipts

# A loan is open for most of each turn, so that most kills hit one.
_TURN_SECONDS: Final = 0.004
# Bounds one wait for the recorder, so that the control word is read.
_FULL_SECONDS: Final = 0.2


def run(assignment: Assignment) -> None:
    """Publish until told to stop, and write each receipt to the ledger."""
    control = Control(Path(assignment.directory))
    receipts = Receipts(assignment.receipts)
    maker = PayloadMaker(assignment.index, assignment.run)
    number = 0
    with hawser.connect(assignment.url, name=assignment.name) as bus:
        publisher = bus.topic(assignment.topic, create=False).publisher()
        start = time.monotonic()
        while not control.is_over:
            turn = time.monotonic() + _TURN_SECONDS
            due = (turn - start) * assignment.rate - number
            if due > 4 * _TURN_SECONDS * assignment.rate + 1:
                # Publishing was delayed by the recorder; the missed messages are not published in one burst.
                start = turn - number / assignment.rate
                continue
            if due < 1:
                time.sleep(_TURN_SECONDS)
            for place in range(int(due)):
                offset = _publish(publisher, maker.make(number), turn if place == 0 else 0.0)
                if offset is None:
                    break
                receipts.append(offset)
                number += 1


def _publish(publisher: "hawser.Publisher[Any]", payload: bytes, pause_until: float) -> int | None:
    """The offset of the message; None if the topic was full for too long."""
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

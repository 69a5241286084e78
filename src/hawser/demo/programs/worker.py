"""A worker of the demo: python -m hawser.demo.programs.worker ROLE URL.

The sorter takes recorded messages as a group, publishes a result of each, and puts each hundredth into a
queue as a job. The checker takes jobs from the queue and publishes them as done. Each round is one
transaction over the messages taken and the messages published. A worker has no other state, so a new process
replaces a killed one.
"""

import sys
import time
from typing import Any, Final

import msgspec

import hawser
from hawser.demo.messages import CHECKED, DONE, JOBS, RESULTS, TOPIC, results_of

# The transaction is open for most of each round, so that most kills hit one.
_OPEN_SECONDS: Final = 0.05
_WAIT_SECONDS: Final = 0.2
_MOST_MESSAGES: Final = 5000
_MOST_JOBS: Final = 50
# The transaction of a killed worker blocks its successor until the worker's session expires.
_RETRIES: Final = 1000
# The cluster did not answer within the transaction's timeout, or the session expired.
_PERHAPS_DONE: Final = (hawser.OutcomeUnknown, hawser.Fenced)


def sort(bus: hawser.Bus) -> None:
    """Run until it is killed."""
    results, jobs = bus.topic(RESULTS, create=False), bus.queue(JOBS, create=False)

    def make(transaction: hawser.Transaction, subscription: "hawser.Subscription[Any]") -> None:
        samples = subscription.take_many(_MOST_MESSAGES, timeout=_WAIT_SECONDS)
        if not samples:
            return
        transaction.commit_offsets(subscription)
        made = results_of((sample.offset, bytes(sample)) for sample in samples)
        values = [msgspec.json.encode(each) for each in made]
        if made:
            transaction.publish_many(results, values, keys=[each.publisher.encode() for each in made])
        chosen = [value for each, value in zip(made, values, strict=True) if each.offset % CHECKED == 0]
        if chosen:
            transaction.publish_many(jobs, chosen)
        time.sleep(_OPEN_SECONDS)

    recorded = bus.topic(TOPIC, create=False)
    while True:
        try:
            with recorded.subscribe(group="sorter", start="earliest") as subscription:
                while True:
                    bus.run_transaction(lambda transaction: make(transaction, subscription), _RETRIES)
        except _PERHAPS_DONE:
            # The group's position shows the outcome; the next subscription begins there.
            continue


def check(bus: hawser.Bus) -> None:
    """Run until it is killed."""
    jobs, done = bus.queue(JOBS, create=False), bus.topic(DONE, create=False)

    def do(transaction: hawser.Transaction) -> None:
        found = transaction.get_many(jobs, _MOST_JOBS, timeout=_WAIT_SECONDS)
        if found:
            transaction.accept(found)
            transaction.publish_many(done, [bytes(job) for job in found])
            time.sleep(_OPEN_SECONDS)

    while True:
        try:
            bus.run_transaction(do, _RETRIES)
        except _PERHAPS_DONE:
            # The jobs are done, or are delivered again.

            continue


if __name__ == "__main__":
    role, url = sys.argv[1:]
    with hawser.connect(url, name=role) as connected:
        {"sorter": sort, "checker": check}[role](connected)

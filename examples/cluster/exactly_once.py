"""Orders come in, invoices go out, each exactly once, though a worker is killed with everything in hand.

python exactly_once.py [URL]

A worker takes an order from a queue, publishes the invoice and accepts the order, in one transaction: either
all of it has happened or nothing.
"""

import os
import signal
import subprocess
import sys
from collections import Counter

import hawser

ORDERS = 20


def work(url: str, fatal: bytes) -> None:
    """Bill orders until it is ended; dies by its own hand at the order `fatal`."""
    with hawser.connect(url, name="worker") as bus:
        orders, invoices = bus.queue("invoicing/orders"), bus.topic("invoicing/invoices")

        def bill(tx: hawser.Transaction) -> None:
            order = tx.get(orders, timeout=1)
            if order is None:
                return
            tx.publish(invoices, b"invoice for " + bytes(order), key=order.key)
            tx.accept(order)
            if bytes(order) == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

        while True:
            # What the function does counts once, however often it has to be run.
            bus.run_transaction(bill)


def main(url: str) -> None:
    with hawser.connect(url, name="shop") as bus:
        # On one shard, so that a transaction over both is one entry of one log.
        invoices = bus.topic("invoicing/invoices", partitions=1)
        orders = bus.queue("invoicing/orders", colocate="invoicing/invoices")
        orders.put_many([b"order %d" % number for number in range(ORDERS)])

        worker = [sys.executable, __file__, url]
        died = subprocess.run([*worker, "order 7"], check=False)
        print(f"a worker was ended by signal {-died.returncode} with order 7 in hand")
        others = [subprocess.Popen([*worker, "none"]) for _ in range(2)]
        written: Counter[bytes] = Counter()
        with invoices.subscribe(start="earliest") as subscription:
            for invoice in subscription:
                written[bytes(invoice)] += 1
                if len(written) == ORDERS:
                    break
        for other in others:
            other.kill()
            other.wait()

        (partition,) = invoices.info().partitions
        print(f"{len(written)} orders have an invoice, {partition.end - 1 - len(written)} have two")
        invoices.delete()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        work(sys.argv[1], sys.argv[2].encode())
    main(sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400")

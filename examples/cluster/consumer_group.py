"""Two consumers share the work of a group; one leaves, and the other goes on with all of it.

python consumer_group.py [URL]
"""

import sys
from collections import Counter

import hawser

ORDERS = 40

url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
with hawser.connect(url, name="shop") as bus:
    orders = bus.topic("billing/orders", partitions=4)
    customers = [str(number % 10).encode() for number in range(ORDERS)]
    # All orders of a customer are in one partition, in their order.
    orders.publish_many([f"order {number}".encode() for number in range(ORDERS)], keys=customers)

    done: Counter[bytes] = Counter()
    anna = orders.subscribe(group="billing", start="earliest")
    for _ in range(5):
        done[bytes(next(anna))] += 1
        anna.commit()

    ben = orders.subscribe(group="billing")
    while done.total() < ORDERS // 2:
        for consumer in (anna, ben):
            sample = consumer.take(timeout=0.05)
            if sample is not None:
                done[bytes(sample)] += 1
                consumer.commit()

    anna.close()
    while len(done) < ORDERS:
        done[bytes(next(ben))] += 1
        ben.commit()
    ben.close()

    print(f"{len(done)} orders were billed, {done.total() - len(done)} of them twice")
    orders.delete()

"""Publish to a topic of a cluster and read it back: python hello_cluster.py [URL]

`hawser up` starts a cluster on this machine and prints its URL.
"""

import sys

import hawser

url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
with hawser.connect(url, name="hello") as bus:
    greetings = bus.topic("greetings", partitions=1)

    for word in (b"hello", b"replicated", b"world"):
        receipt = greetings.publish(word, headers={"language": b"en"})
        print(
            f"published {word.decode()!r} at offset {receipt.first_offset}, on a {receipt.durability}'s disks"
        )

    with greetings.subscribe(start="earliest") as subscription:
        for sample in subscription:
            print(f"received {bytes(sample).decode()!r} from {sample.publisher!r}, offset {sample.offset}")
            if bytes(sample) == b"world":
                break

    greetings.delete()

"""Publish a few messages, then read them: the publisher and the subscriber need not run at the same time."""

import hawser

with hawser.connect(name="hello") as bus:
    greetings = bus.topic("greetings", history=16)

    for word in (b"hello", b"shared", b"world"):
        receipt = greetings.publish(word, headers={"language": b"en"})
        print(f"published {word.decode()!r} at offset {receipt.first_offset}")

    with greetings.subscribe(history=3) as subscription:
        for sample in subscription:
            print(f"received {bytes(sample).decode()!r} from {sample.publisher!r}, offset {sample.offset}")
            if bytes(sample) == b"world":
                break

    greetings.delete()

"""A subscriber that comes late gets what the topic has kept first, and then whatever is published next."""

import hawser

with hawser.connect(name="thermometer") as bus:
    readings = bus.topic("kitchen/temperature", history=5)
    for degrees in (18.2, 18.4, 18.9, 19.3, 19.8, 20.1, 20.4):
        readings.publish(f"{degrees}".encode())
print("the thermometer has published 7 readings and is gone")

with hawser.connect(name="display") as bus:
    readings = bus.topic("kitchen/temperature")

    with readings.subscribe(history=5) as subscription:
        readings.publish(b"20.7")
        for sample in subscription:
            print(f"reading {sample.offset}: {bytes(sample).decode()} degrees")
            if sample.offset == 8:
                break

    # Looking back needs no subscription at all.
    newest = readings.read_newest(2)
    print("the last two were", ", ".join(bytes(sample).decode() for sample in newest.samples))

    readings.delete()

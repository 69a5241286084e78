"""Read the domain of the sample, in a namespace with the sample's boot id, and print what it holds."""

import json
import sys

import hawser

with hawser.connect("shm://" + sys.argv[1], name="writer") as bus:
    frames, jobs = bus.topic("frames"), bus.queue("jobs")
    history = frames.read_oldest(100).samples
    subscription = frames.subscribe(resume=True, reliable="durable")
    resumed = [bytes(sample) for sample in iter(lambda: subscription.take(timeout=0), None)]
    messages = jobs.get_many(100, timeout=0)
    found = {
        "history": [
            [bytes(each).decode(), (each.key or b"").decode(), each.headers["unit"].decode()]
            for each in history
        ],
        "offsets": [each.offset for each in history],
        "resumed": [each.decode() for each in resumed],
        "jobs": [[bytes(each).decode(), each.delivery_count] for each in messages],
        "trace": frames.info().settings["trace"],
    }
    messages.accept()
    frames.publish(b"frame 5")
    found["next"] = frames.read_newest(1).samples[0].offset
print(json.dumps(found))

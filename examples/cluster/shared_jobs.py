"""Two workers share a queue; one crashes with a job in hand, and the other does it.

python shared_jobs.py [URL]

With shm:// it is the same program on one host.
"""

import sys

import hawser

url = sys.argv[1] if len(sys.argv) > 1 else "hawser://127.0.0.1:7400"
with hawser.connect(url, name="shop") as bus, hawser.connect(url, name="ben") as other:
    jobs = bus.queue("pictures", max_deliveries=3)
    jobs.put_many([f"{number}.png".encode() for number in range(10)])

    with hawser.connect(url, name="anna") as worker:
        mine = worker.queue("pictures")
        for job in mine.get_many(3, timeout=10)[:2]:
            job.accept()
        print("anna did two jobs, and leaves with one in hand")

    done, again = 2, 0
    for job in other.queue("pictures").consume():
        with job:
            done, again = done + 1, again + job.redelivered
        if done == 10:
            break
    print(f"{done} pictures were resized, {again} of them in a second attempt")
    jobs.delete()

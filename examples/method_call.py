"""A method of another process: a call is a message in its queue, the answer one in the caller's own.

The server is killed in the middle of a call. The call is still in the queue, and the next server answers it.
"""

import multiprocessing
import os
import signal

import hawser


def server(name: str, dies: bool) -> None:
    """Answer two calls; or die, without any warning, with one in hand."""
    with hawser.connect(name=name) as bus, bus.queue("calculator/square", create=False) as calls:
        for _ in range(2):
            call = calls.get(timeout=10)
            assert call is not None, "the caller makes two calls"
            with call:  # accepted at the end: until then another server may get it
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                answers = bus.queue(call.headers["answer to"].decode(), create=False)
                answers.put(b"%d by %s" % (int(bytes(call)) ** 2, name.encode()), key=call.key)


def start(name: str, dies: bool = False) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=server, args=(name, dies))
    process.start()
    return process


def main() -> None:
    with hawser.connect(name="caller") as bus:
        calls = bus.queue("calculator/square", slot_size=256)
        answers = bus.queue("answers/caller", slot_size=256, ephemeral=True)
        for number in (7, 12):
            calls.put(b"%d" % number, key=b"%d" % number, headers={"answer to": b"answers/caller"})
        start("first", dies=True).join()
        second = start("second")
        for _, answer in zip(range(2), answers.consume(), strict=False):
            with answer:
                print(f"{bytes(answer.key or b'').decode()} squared is {bytes(answer).decode()}")
        second.join()
        answers.close()
        calls.delete()


if __name__ == "__main__":
    main()

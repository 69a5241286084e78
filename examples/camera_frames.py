"""Camera frames as numpy arrays between two processes, without a copy on either side."""

import multiprocessing

import numpy

import hawser

HEIGHT, WIDTH = 720, 1280
SHAPE = (HEIGHT, WIDTH, 3)
FRAMES = 30


def camera() -> None:
    """Draw each frame straight into shared memory; it is published when the block ends."""
    with hawser.connect(name="camera") as bus:
        frames = bus.topic("viewer/camera", create=False)
        for number in range(FRAMES):
            with frames.loan_array(SHAPE, "u1", key=b"front") as frame:
                frame[:] = 0
                frame[:, number * WIDTH // FRAMES] = 255
        print(f"camera: published {FRAMES} frames of {HEIGHT * WIDTH * 3:,} bytes")


def main() -> None:
    with hawser.connect(name="viewer") as bus:
        frames = bus.topic("viewer/camera", slot_size=HEIGHT * WIDTH * 3 + 64, history=4, depth=4)
        # Reliable: the camera waits for this viewer rather than overwrite what it has not seen.
        with frames.subscribe(reliable=True) as subscription:
            process = multiprocessing.get_context("spawn").Process(target=camera)
            process.start()
            for sample in subscription:
                image = sample.array("u1", SHAPE)
                column = int(numpy.argmax(image[0, :, 0]))
                if sample.offset % 10 == 0:
                    print(f"viewer: frame {sample.offset} has its line at column {column}")
                if sample.offset == FRAMES:
                    break
            process.join()
            print(f"viewer: saw {subscription.received} frames, missed {subscription.missed}")
        # An array may outlive its subscription: the slot stays ours until the last view is gone.
        print(f"viewer: the last line is still there: {bool(image[0, column, 0] == 255)}")
        frames.delete()


if __name__ == "__main__":
    main()

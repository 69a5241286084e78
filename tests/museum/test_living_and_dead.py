"""The living taken for dead, and deaths that nobody was told of. Found by review."""

from hawser.testing import LocalBus
from tests.support.builds import Build
from tests.support.children import Channel, sleep_for_ever, victim

CLOSED_MEANWHILE = """
import os, sys, threading, hawser
bus, living = hawser.connect(sys.argv[1]), hawser.connect(sys.argv[1], name="living")
topic = bus.topic("closed", slot_size=64, max_subscribers=200)
subscriptions = [living.topic("closed").subscribe() for _ in range(60)]
topic.publish(b"x")
held = [subscription.take() for subscription in subscriptions]
done = False
def close_what_others_opened():
    while not done:
        os.closerange(3, 30)
closer = threading.Thread(target=close_what_others_opened, daemon=True)
closer.start()
recovered = failed = 0
for _ in range(3000):
    try:
        recovered += len(topic._region.recover())
    except hawser.HawserError:
        failed += 1
done = True
closer.join()
assert {bytes(sample) for sample in held} == {b"x"}
assert {subscription.take(0) for subscription in subscriptions} == {None}
print(recovered, failed)
"""


def test_descriptors_closed_during_recovery_are_no_deaths() -> None:
    """A probe that failed was taken for the answer that nobody lives."""
    with LocalBus() as local:
        done = Build().run("-c", CLOSED_MEANWHILE, local.url)
    assert done.returncode == 0, done.stderr
    recovered, failed = map(int, done.stdout.split())
    assert recovered == 0
    assert failed > 0, "no descriptor was closed at the wrong moment"


def test_every_recovery_is_announced() -> None:
    """Whoever remembers something of the dead looks again when the count has changed."""
    with LocalBus() as local:
        bus = local.connect()
        topic = bus.topic("mourned", slot_size=64)

        def take_part(channel: Channel) -> None:
            local.connect("short-lived").topic("mourned").publish(b"x")
            channel.tell("ready")
            sleep_for_ever()

        with victim(take_part) as child:
            child.hear()
        before = topic.info().recoveries
        assert [each.name for each in bus.recover()] == ["short-lived"]
        assert topic.info().recoveries == before + 1
        assert bus.recover() == []
        assert topic.info().recoveries == before + 1

"""The landing pipeline brings the recorded messages and what the workers made of them into tables; its driver
is killed as soon as something has landed.

Proof: every record that the topics have is in the raw table, once.
"""

from collections.abc import Mapping
from typing import Final

from hawser.demo.messages import CHECKED, LANDED
from hawser.demo.parts.part import Moment, Part, Row, Scene
from hawser.demo.processes import Process
from hawser.demo.proof import Proof, compare

__all__ = ["Landing", "prove_landing"]

# How many micro-batches the messages are landed in, at least.
_BATCHES: Final = 8


class Landing(Part):
    title = "landed in tables"
    verb = "landed"
    sign = "landing goes on"
    moments = (Moment(0.0, "driver"),)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._driver = Process("landing", scene.directory, "hawser", "pipeline", "run", "landing")
        self.processes = [self._driver]

    @property
    def expected(self) -> int:
        return 2 * self.scene.messages + self.scene.messages // CHECKED

    def start(self) -> None:
        from hawser.spark.pipelines import tables

        scene, arguments = self.scene, self._driver.arguments
        arguments += ["--url", scene.cluster_url, "--dir", str(scene.landing), "--every", "1"]
        arguments += [word for topic in LANDED for word in ("--topic", topic)]
        arguments += ["--conf", f"spark.hawser.batch.records={2 * scene.plan.messages // _BATCHES}"]
        self._driver.start()
        scene.watch.add(self.gauge, lambda: tables.count(scene.landing, "raw"))

    def proof(self) -> Proof:
        scene = self.scene
        heads = {name: scene.cluster.topic(name, create=False).info().head for name in LANDED}
        return prove_landing(heads, {name: scene.rows(name) for name in LANDED})


def prove_landing(heads: Mapping[str, int], rows: Mapping[str, list[Row]]) -> Proof:
    """`heads` are the newest offsets of the topics."""
    expected = [(topic, offset) for topic, head in heads.items() for offset in range(1, head + 1)]
    found = [(topic, row.offset) for topic, landed in rows.items() for row in landed]
    return compare("records of the topics in the table", expected, found, is_ordered=False)

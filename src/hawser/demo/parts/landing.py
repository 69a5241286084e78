"""Landing: the landing pipeline writes the recorded messages and their results to tables. Its driver is
killed after the first records have landed.

Proof: each record of the topics is in the raw table once.
"""

from collections.abc import Mapping
from typing import Final

from hawser.demo.messages import CHECKED, LANDED
from hawser.demo.parts.part import Environment, KillPoint, Part, Row
from hawser.demo.processes import Process
from hawser.demo.proof import Proof, compare

__all__ = ["LandingPart", "prove_landing"]

# Minimum number of micro-batches of the landing.
_BATCHES: Final = 8


class LandingPart(Part):
    title = "landed in tables"
    verb = "landed"
    sign = "landing resumes"
    kill_points = (KillPoint(0.0, "driver"),)

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._driver = Process("landing", environment.directory, "hawser", "pipeline", "run", "landing")
        self.processes = [self._driver]

    @property
    def expected(self) -> int:
        return 2 * self.environment.messages + self.environment.messages // CHECKED

    def start(self) -> None:
        from hawser.spark.pipelines import tables

        environment, arguments = self.environment, self._driver.arguments
        arguments += ["--url", environment.cluster_url, "--dir", str(environment.landing), "--every", "1"]
        arguments += [word for topic in LANDED for word in ("--topic", topic)]
        arguments += ["--conf", f"spark.hawser.batch.records={2 * environment.plan.messages // _BATCHES}"]
        self._driver.start()
        environment.watch.add(self.gauge, lambda: tables.count(environment.landing, "raw"))

    def proof(self) -> Proof:
        environment = self.environment
        heads = {name: environment.cluster.topic(name, create=False).info().head for name in LANDED}
        return prove_landing(heads, {name: environment.rows(name) for name in LANDED})


def prove_landing(heads: Mapping[str, int], rows: Mapping[str, list[Row]]) -> Proof:
    """Compare the rows with the offsets up to `heads`, the newest offsets of the topics."""
    expected = [(topic, offset) for topic, head in heads.items() for offset in range(1, head + 1)]
    found = [(topic, row.offset) for topic, landed in rows.items() for row in landed]
    return compare("records of the topics in the table", expected, found, is_ordered=False)

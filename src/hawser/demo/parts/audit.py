"""The audit: `hawser pipeline audit`, which is independent of the demo, compares the trace, the log, Spark's
checkpoint and the tables for every message.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from hawser.demo.messages import LANDED, TRACE
from hawser.demo.parts.part import Environment, Part
from hawser.demo.processes import Process
from hawser.demo.proof import Proof, some

if TYPE_CHECKING:
    from hawser.spark.pipelines.auditing.document import Document

__all__ = ["AuditPart", "prove_audit"]

_TITLE: Final = "messages in all tiers, by the audit"
_MISMATCH: Final = 7
_UNDECIDED: Final = 8


class Audit(Process):
    """The process of the audit. Its exit codes for mismatches and undecided messages go into the proof."""

    good_codes = frozenset({0, _MISMATCH, _UNDECIDED})


class AuditPart(Part):
    title = "rows of evidence in the audit"
    verb = "rows of evidence"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._audit = Audit("audit", environment.directory, "hawser", "pipeline", "audit")
        self.processes = [self._audit]

    @property
    def expected(self) -> int:
        return self.gauge.value + (not self.is_done)

    @property
    def is_done(self) -> bool:
        return self._audit.code in self._audit.good_codes

    @property
    def note(self) -> str:
        return self._audit.last_words(1)

    def start(self) -> None:
        environment, arguments = self.environment, self._audit.arguments
        arguments += [
            "--url",
            environment.cluster_url,
            "--trace",
            TRACE,
            "--landing",
            str(environment.landing),
        ]
        arguments += [word for topic in LANDED for word in ("--topic", topic)]
        arguments += ["--dir", str(self.environment.audit), "--complete"]
        self._audit.start()
        environment.watch.add(self.gauge, self._look)

    def _look(self) -> int:
        from hawser.spark.pipelines import tables

        found = (self.environment.audit / "tables").glob("*")
        return sum(tables.count(self.environment.audit, table.name) for table in found)

    def proof(self) -> Proof:
        from hawser.spark.pipelines.auditing.document import Document

        if not self.is_done:
            proof = Proof(_TITLE, 0)
            proof.require(False, f"the audit did not finish: {self._audit.last_words()}")
            return proof
        return prove_audit(
            msgspec.json.decode((self.environment.audit / "audit.json").read_bytes(), type=Document)
        )


def prove_audit(document: "Document") -> Proof:
    """The proof from the audit's report. The audit must have read every tier. Messages that it did not see or
    could not compare in a tier are permitted only if trace records were lost: those of a publisher that was
    killed between a message and its record, or records that were overwritten before the agent read them."""
    from hawser.spark.pipelines.auditing.document import TIERS

    tiers = document.tiers
    expected, found = sum(tier.expected for tier in tiers), sum(tier.found for tier in tiers)
    proof = Proof(_TITLE, expected, found)
    words: Counter[str] = Counter()
    for tier in tiers:
        words.update(tier.words)
        is_seen = tier.found > 0 and tier.found + tier.words.get("unwitnessed", 0) == tier.expected
        proof.require(is_seen, f"{tier.tier}: {tier.found} of {tier.expected}")
    proof.lost, proof.doubled = words["missing"] + words["pending"], words["duplicate"]
    proof.damaged, proof.out_of_order = words["damaged"], words["reordered"]
    proof.require(document.is_whole, document.verdict)
    absent = [tier for tier in TIERS if tier not in {each.tier for each in tiers}]
    proof.require(not absent, f"the audit read no messages of these tiers: {some(absent)}")
    unknown = {word: words[word] for word in ("unwitnessed", "uncompared") if words[word]}
    told = " and ".join(f"{count} are {word}" for word, count in unknown.items())
    proof.require(not unknown or document.lost > 0, f"{told}, and no trace was lost")
    proof.remarks.append(f"the audit: {document.verdict}")
    if unknown:
        proof.remarks.append(f"{told}: {document.lost} records of the trace were lost")
    return proof

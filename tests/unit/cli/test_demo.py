"""The proofs of `hawser demo`: they hold for a true story, and name what is wrong with a false one."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from hawser.demo.display import view
from hawser.demo.messages import DONE, RESULTS, TOPIC, PayloadMaker, results_of
from hawser.demo.orchestrator import Kill, Orchestrator, Standstill
from hawser.demo.parts.audit import prove_audit
from hawser.demo.parts.landing import prove_landing
from hawser.demo.parts.part import Plan, Row
from hawser.demo.parts.publishers import Run, prove_receipts
from hawser.demo.parts.recording import prove_recording
from hawser.demo.parts.totals import Total, prove_totals
from hawser.demo.parts.workers import expected_jobs, expected_results, prove_jobs, prove_results
from hawser.demo.processes import Failure, Process
from hawser.demo.programs.ledger import Control, Receipts, read_receipts
from hawser.demo.proof import Proof
from hawser.spark.pipelines.auditing.document import TIERS, Document, Tier, TierTotal, Word

PRODUCER = "recorder:demo-agent/region"
PUBLISHED = 240
BATCH = 60


class Story:
    """Two publishers in turn; the first was killed behind its message 9, of which it has no receipt. Every
    message has a result, every hundredth is a job that was done, and the totals were written in four batches.
    """

    def __init__(self) -> None:
        makers = {(0, 1): PayloadMaker(0, 1), (0, 2): PayloadMaker(0, 2), (1, 1): PayloadMaker(1, 1)}
        receipts: dict[tuple[int, int], list[int]] = {key: [] for key in makers}
        self.recorded: list[Row] = []
        for offset in range(1, PUBLISHED + 1):
            publisher = offset % 2
            key = (publisher, 1 if publisher or offset <= 20 else 2)
            self.recorded.append(Row(offset, PRODUCER, offset, makers[key].make(len(receipts[key]))))
            receipts[key].append(offset)
        # What is told of it may be false.
        self.true = tuple(self.recorded)
        receipts[0, 1].pop()
        self.runs = [
            Run(f"publisher-{publisher + 1}", publisher, run, found, (publisher, run) == (0, 1))
            for (publisher, run), found in receipts.items()
        ]
        self.true_results = tuple(expected_results(self.recorded))
        self.results = list(self.true_results)
        self.done = expected_jobs(self.recorded)
        self.landed = {
            TOPIC: list(range(1, PUBLISHED + 1)),
            RESULTS: list(range(1, PUBLISHED + 1)),
            DONE: list(range(1, PUBLISHED // 100 + 1)),
        }
        self.totals = [total for number in range(PUBLISHED // BATCH) for total in self._totals(number)]

    def _totals(self, number: int) -> list[Total]:
        part = self.recorded[number * BATCH : (number + 1) * BATCH]
        made = results_of((row.offset, row.value) for row in part)
        found = []
        for publisher in ("publisher-1", "publisher-2"):
            mine = [each for each in made if each.publisher == publisher]
            sums = sum(each.bytes for each in mine), sum(each.checksum for each in mine)
            found.append(Total(number, len(mine), *sums, publisher))
        return found

    def prove(self) -> list[Proof]:
        heads = {TOPIC: PUBLISHED, RESULTS: PUBLISHED, DONE: PUBLISHED // 100}
        rows = {name: [Row(offset, "", 0, b"") for offset in found] for name, found in self.landed.items()}
        return [
            prove_receipts(self.runs, self.recorded),
            prove_recording(PUBLISHED, PRODUCER, self.recorded),
            prove_results(self.true, self.results),
            prove_jobs(self.true, self.done),
            prove_landing(heads, rows),
            prove_totals(self.true, self.totals),
        ]


def test_a_true_story_is_proven() -> None:
    proofs = Story().prove()
    assert [proof.contradictions for proof in proofs] == [[]] * 6
    assert [(proof.expected, proof.found) for proof in proofs] == [
        (239, 239), (240, 240), (240, 240), (2, 2), (482, 482), (240, 240),
    ]  # fmt: skip
    assert all(proof.as_dict()["proven"] for proof in proofs)


def _lose(story: Story) -> str:
    del story.recorded[30]
    return "1 are lost: 31"


def _double(story: Story) -> str:
    story.recorded.insert(31, story.recorded[30])
    return "1 are duplicates: 31"


def _lose_and_double(story: Story) -> str:
    """Counts alone say nothing."""
    story.recorded[30] = story.recorded[31]
    return "1 are lost: 31"


def _swap_values(story: Story) -> str:
    one, two = story.recorded[30], story.recorded[32]
    story.recorded[30], story.recorded[32] = one._replace(value=two.value), two._replace(value=one.value)
    return "publisher-2, run 1: 2 messages are not at the offsets of their receipts"


def _repeat_a_value(story: Story) -> str:
    """In the place of the one message that nobody has a receipt of."""
    story.recorded[19] = story.recorded[19]._replace(value=story.recorded[25].value)
    return "1 repeat another message: 26"


def _swap_places(story: Story) -> str:
    story.recorded[30], story.recorded[31] = story.recorded[31], story.recorded[30]
    return "1 come after a newer one"


def _damage(story: Story) -> str:
    row = story.recorded[30]
    story.recorded[30] = row._replace(value=row.value[:-1] + bytes([row.value[-1] ^ 1]))
    return "1 are not what a publisher wrote: 31"


def _invent(story: Story) -> str:
    story.recorded.append(Row(PUBLISHED + 1, PRODUCER, PUBLISHED + 1, PayloadMaker(1, 1).make(120)))
    return f"1 are not expected: {PUBLISHED + 1}"


def _strange_producer(story: Story) -> str:
    story.recorded.append(story.recorded[0]._replace(producer="someone else"))
    return "1 are not expected: ('someone else', 1)"


def _forge_receipt(story: Story) -> str:
    run = story.runs[2]
    story.runs[2] = run._replace(receipts=[*run.receipts[:-1], PUBLISHED + 7])
    return "publisher-2, run 1: 1 messages are not at the offsets of their receipts: 119"


def _forget_receipts(story: Story) -> str:
    run = story.runs[0]
    story.runs[0] = run._replace(receipts=run.receipts[:-1])
    return "publisher-1, run 1: messages without a receipt: 8, 9"


def _was_not_killed(story: Story) -> str:
    story.runs[0] = story.runs[0]._replace(killed=False)
    return "publisher-1, run 1: messages without a receipt: 9"


def _strange_run(story: Story) -> str:
    del story.runs[1]
    return "messages of runs that did not exist: (0, 2)"


def _result_of_a_lost_transaction(story: Story) -> str:
    del story.results[7]
    return f"1 are lost: {story.true_results[7]!r}"


def _result_of_two_transactions(story: Story) -> str:
    story.results.append(story.results[7])
    return f"1 are duplicates: {story.results[7]!r}"


def _job_done_twice(story: Story) -> str:
    story.done[0] = story.done[1]
    return f"1 are duplicates: {story.done[1]!r}"


def _not_landed(story: Story) -> str:
    story.landed[RESULTS].remove(17)
    return f"1 are lost: {(RESULTS, 17)}"


def _landed_twice(story: Story) -> str:
    story.landed[DONE].append(2)
    return f"1 are duplicates: {(DONE, 2)}"


def _batch_not_written(story: Story) -> str:
    del story.totals[2:4]
    return "messages of publisher-1: 90 in the totals, expected 120"


def _batch_written_twice(story: Story) -> str:
    story.totals += story.totals[-2:]
    return "batches were written twice: (3, 'publisher-1'), (3, 'publisher-2')"


def _batch_in_place_of_another(story: Story) -> str:
    """As many messages, and others."""
    story.totals[2] = msgspec.structs.replace(story.totals[4], batch=1)
    return "bytes of publisher-1: "


FORGERIES = [
    _lose, _double, _lose_and_double, _swap_values, _repeat_a_value, _swap_places, _damage, _invent,
    _strange_producer, _forge_receipt, _forget_receipts, _was_not_killed, _strange_run,
    _result_of_a_lost_transaction, _result_of_two_transactions, _job_done_twice, _not_landed, _landed_twice,
    _batch_not_written, _batch_written_twice, _batch_in_place_of_another,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_false_story_is_found(forge: Callable[[Story], str]) -> None:
    story = Story()
    expected = forge(story)
    contradictions = [text for proof in story.prove() for text in proof.contradictions]
    assert any(text.startswith(expected) for text in contradictions), contradictions


def test_a_ledger_is_true_after_every_receipt(tmp_path: Path) -> None:
    receipts = Receipts(tmp_path / "receipts")
    assert read_receipts(tmp_path / "nothing") == ()
    receipts.append(7)
    receipts.append(1 << 40)
    assert read_receipts(tmp_path / "receipts") == (7, 1 << 40)
    control = Control(tmp_path)
    assert not control.is_over
    Control(tmp_path).stop_publishing()
    assert control.is_over


def test_a_part_that_stands_still_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it would wait for ever."""
    orchestrator = Orchestrator(Plan(1000, 1, 1.0, 1), tmp_path, tmp_path)
    try:
        orchestrator._started_parts = orchestrator.parts[:2]
        orchestrator._check_progress()
        monkeypatch.setattr("hawser.demo.orchestrator._STANDSTILL_SECONDS", -1.0)
        orchestrator.parts[0].gauge.saw(1)
        with pytest.raises(Standstill, match="nothing more is recorded than 0"):
            orchestrator._check_progress()
    finally:
        orchestrator.close()


def test_the_live_view_shows_every_part_and_every_kill(tmp_path: Path) -> None:
    stage = Orchestrator(Plan(1000, 2, 1.0, 1), tmp_path, tmp_path)
    try:
        stage.parts[0].gauge.saw(1234)
        stage.kills.append(Kill("leader", "n2", 7.0, "recording resumes", lambda: True, 1.5))
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(view(stage, "publishing"))
    finally:
        stage.close()
    shown = console.export_text()
    assert all(part.title in shown for part in stage.parts)
    assert all(process.name in shown for process in stage.processes)
    assert "1,234" in shown
    assert "leader n2 killed -9" in shown and "recording resumes after 1.5 s" in shown


def test_a_mismatch_of_the_audit_is_not_proven() -> None:
    whole = audited({}, True)
    assert whole.proven and (whole.expected, whole.found) == (240, 240)
    false = audited({"missing": 2, "duplicate": 1}, False)
    assert (false.lost, false.doubled) == (12, 6)
    assert false.contradictions == [*(f"{tier}: 38 of 40" for tier in TIERS), "the verdict"]


def test_what_an_audit_did_not_see_is_not_proven() -> None:
    assert audited({"unwitnessed": 3}, True, lost=3).remarks == [
        "the audit: the verdict", "18 are unwitnessed: 3 records of the trace were lost",
    ]  # fmt: skip
    assert audited({"unwitnessed": 3}, True, lost=3).proven
    assert audited({"uncompared": 3, "unwitnessed": 1}, True, lost=3).remarks[-1] == (
        "6 are unwitnessed and 18 are uncompared: 3 records of the trace were lost"
    )
    assert audited({"uncompared": 3}, True).contradictions == ["18 are uncompared, and no trace was lost"]
    assert audited({"unwitnessed": 3}, True).contradictions == ["18 are unwitnessed, and no trace was lost"]
    assert not audited({"unwitnessed": 40}, True, lost=40).proven
    absent = audited({}, True, tiers=TIERS[2:])
    assert absent.contradictions == ["the audit read no messages of these tiers: published, delivered"]


def audited(words: dict[Word, int], is_whole: bool, lost: int = 0, tiers: Sequence[Tier] = TIERS) -> Proof:
    """Of an audit that found the same in every tier."""
    found = 40 - words.get("missing", 0) - words.get("unwitnessed", 0)
    totals = [
        TierTotal(tier=tier, lines=1, expected=40, found=found, bytes=0, compared=0, words=words)
        for tier in tiers
    ]
    document = Document(
        verdict="the verdict", is_whole=is_whole, is_proven=not words, url="", directory="", landing="",
        trace="", written="", seconds=0, late_seconds=0, messages=40, uncompared=0, tiers=totals, lines=[],
        problems=[], problems_left_out=0, latencies=[], events=[], events_left_out=0, traced=0, lost=lost,
        losses=[],
    )  # fmt: skip
    return prove_audit(document)


def test_a_program_that_ends_badly_is_named_with_its_last_words(tmp_path: Path) -> None:
    process = Process("nonsense", tmp_path, "hawser", "no-such-command")
    process.start()
    with pytest.raises(Failure, match=r"nonsense ended by itself with code 2: .*no-such-command"):
        process.wait_end()

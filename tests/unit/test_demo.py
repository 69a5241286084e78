"""The verdict of `hawser demo`: it balances for a true story, and names what is wrong with a false one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hawser.cli.demo.ledger import Control, Receipts, read_receipts
from hawser.cli.demo.payload import PayloadMaker
from hawser.cli.demo.processes import Failure
from hawser.cli.demo.stage import Plan, Stage
from hawser.cli.demo.verdict import Books, Row, Run, prove

PRODUCER = "recorder:demo-agent/region"
PUBLISHED = 60


class Story:
    """Two publishers in turn; the first was killed behind its message 9, of which it has no receipt."""

    def __init__(self) -> None:
        makers = {(0, 1): PayloadMaker(0, 1), (0, 2): PayloadMaker(0, 2), (1, 1): PayloadMaker(1, 1)}
        receipts: dict[tuple[int, int], list[int]] = {key: [] for key in makers}
        self.rows: list[Row] = []
        for offset in range(1, PUBLISHED + 1):
            publisher = offset % 2
            key = (publisher, 1 if publisher or offset <= 20 else 2)
            self.rows.append(Row(PRODUCER, offset, makers[key].make(len(receipts[key]))))
            receipts[key].append(offset)
        receipts[0, 1].pop()
        self.runs = [
            Run(f"publisher-{publisher + 1}", publisher, run, found, (publisher, run) == (0, 1))
            for (publisher, run), found in receipts.items()
        ]

    def prove(self) -> Books:
        return prove(self.runs, PUBLISHED, PRODUCER, self.rows)


def test_a_true_story_is_proven() -> None:
    books = Story().prove()
    assert books.proven, books.contradictions
    assert (books.published, books.landed, books.receipts, books.without_receipt) == (60, 60, 59, 1)
    assert books.as_dict()["lost"] == books.doubled == books.damaged == books.invented == 0


def _lose(story: Story) -> str:
    del story.rows[30]
    return "1 messages are in no table: 31"


def _double(story: Story) -> str:
    story.rows.insert(31, story.rows[30])
    return "1 messages are there twice: 31"


def _lose_and_double(story: Story) -> str:
    """Counts alone say nothing."""
    story.rows[30] = story.rows[31]
    return "1 messages are in no table: 31"


def _swap_values(story: Story) -> str:
    one, two = story.rows[30], story.rows[32]
    story.rows[30], story.rows[32] = one._replace(value=two.value), two._replace(value=one.value)
    return "publisher-2, run 1: 2 messages are not where their receipts say"


def _repeat_a_value(story: Story) -> str:
    """In the place of the one message that nobody has a receipt of."""
    story.rows[19] = story.rows[19]._replace(value=story.rows[25].value)
    return "1 rows say what another one says: 26"


def _swap_places(story: Story) -> str:
    story.rows[30], story.rows[31] = story.rows[31], story.rows[30]
    return "1 rows come before one that is older"


def _damage(story: Story) -> str:
    row = story.rows[30]
    story.rows[30] = row._replace(value=row.value[:-1] + bytes([row.value[-1] ^ 1]))
    return "1 rows are not what a publisher wrote: 31"


def _invent(story: Story) -> str:
    story.rows.append(Row(PRODUCER, PUBLISHED + 1, PayloadMaker(1, 1).make(30)))
    return "1 rows were never published: 61"


def _strange_producer(story: Story) -> str:
    story.rows.append(story.rows[0]._replace(producer="someone else"))
    return "1 rows were never published"


def _forge_receipt(story: Story) -> str:
    run = story.runs[2]
    story.runs[2] = run._replace(receipts=[*run.receipts[:-1], PUBLISHED + 7])
    return "publisher-2, run 1: 1 messages are not where their receipts say: 29"


def _forget_receipts(story: Story) -> str:
    run = story.runs[0]
    story.runs[0] = run._replace(receipts=run.receipts[:-1])
    return "publisher-1, run 1: messages without a receipt: 8, 9"


def _was_not_killed(story: Story) -> str:
    story.runs[0] = story.runs[0]._replace(killed=False)
    return "publisher-1, run 1: messages without a receipt: 9"


def _strange_run(story: Story) -> str:
    del story.runs[1]
    return "messages of runs that never were: (0, 2)"


@pytest.mark.parametrize(
    "forge",
    [
        _lose, _double, _lose_and_double, _swap_values, _repeat_a_value, _swap_places, _damage, _invent,
        _strange_producer, _forge_receipt, _forget_receipts, _was_not_killed, _strange_run,
    ],
)  # fmt: skip
def test_a_false_story_is_found(forge: Callable[[Story], str]) -> None:
    story = Story()
    expected = forge(story)
    contradictions = story.prove().contradictions
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
    stage = Stage(Plan(1000, 1, 1.0, 1), tmp_path, tmp_path)
    try:
        stage._check_movement()
        monkeypatch.setattr("hawser.cli.demo.stage._STANDSTILL_SECONDS", -1.0)
        stage.topic.publish(b"x")
        stage.gauges.recorded.saw(1)
        with pytest.raises(Failure, match="nothing more is landed than 0 messages"):
            stage._check_movement()
    finally:
        stage.close()

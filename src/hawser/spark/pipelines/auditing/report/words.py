"""How the report shows a word of the audit: by colour, letter and the word itself, never by colour alone."""

from collections.abc import Collection, Mapping
from html import escape
from typing import Final, Literal, NamedTuple

from hawser.spark.pipelines.auditing.document import MISMATCHES, UNKNOWN, WORDS, Document, Word
from hawser.spark.pipelines.report.elements import Markup

__all__ = ["SIGNS", "Kind", "Sign", "chip", "chips", "kind_of", "mismatches_of", "worst"]

Kind = Literal["bad", "unsure", "open"]


class Sign(NamedTuple):
    """A letter for cells too small for the word, and what the word means."""

    letter: str
    meaning: str


SIGNS: Final[dict[Word, Sign]] = {
    "missing": Sign("M", "the tier before has it; this one has not, and has later ones"),
    "duplicate": Sign("D", "it is there more than once"),
    "reordered": Sign("R", "it came behind later ones"),
    "damaged": Sign("X", "the numbers are all there, and time or content is another"),
    "missed": Sign("S", "a subscriber was too slow for it, and was told so"),
    "late": Sign("L", "it came, later after its own time than allowed"),
    "pending": Sign("P", "the tier before has it, and this one is not so far yet"),
    "unwitnessed": Sign("?", "it passed, and the trace or log that would tell of it was lost or not on"),
    "uncompared": Sign("U", "it is there, and the tier before does not have it to compare it with"),
}
assert tuple(SIGNS) == WORDS, "a word that the report cannot show"


def mismatches_of(document: Document) -> frozenset[Word]:
    """The words that are mismatches in this audit; which they are depends on what it was asked."""
    return MISMATCHES | {each.word for each in document.problems if each.is_mismatch}


def kind_of(word: Word, mismatches: Collection[Word]) -> Kind:
    if word in mismatches:
        return "bad"
    return "open" if word == "pending" or word in UNKNOWN else "unsure"


def worst(words: Mapping[Word, int], mismatches: Collection[Word]) -> Word | None:
    """The one that a reader has to see first."""
    found = [word for word in WORDS if words.get(word)]
    return min(found, key=lambda word: word not in mismatches, default=None)


def chip(word: Word, mismatches: Collection[Word], count: int | None = None) -> Markup:
    """The word with its letter, in its colour."""
    told = word if count is None else f"{count:,} {word}"
    return Markup(
        f'<span class="chip {kind_of(word, mismatches)}"><i>{escape(SIGNS[word].letter)}</i>{told}</span>'
    )


def chips(words: Mapping[Word, int], mismatches: Collection[Word], otherwise: str = "complete") -> Markup:
    """Each word with its number, or what is said if there is none."""
    found = [chip(word, mismatches, words[word]) for word in WORDS if words.get(word)]
    return Markup(" ".join(found) or f'<span class="chip good"><i>✓</i>{escape(otherwise)}</span>')

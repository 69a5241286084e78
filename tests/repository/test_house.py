"""The names and the language of the tree: rooms are small, modules are nouns, and one vocabulary is used."""

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "hawser"
MOST_FILES_OF_A_FOLDER = 14

# One package with one name for users; its simulator is not divided.
LARGE_FOLDERS = {"testing"}

# Names of activities that the field uses.
GERUNDS = {
    "api/cluster/publishing",
    "api/cluster/aio/publishing",
    "api/local/publishing",
    "api/local/consuming",
    "api/local/aio/publishing",
    "api/publishing",
    "record/recording",
    "demo/parts/recording",
    "demo/parts/landing",
    "bench/host/scaling",
    "memory/temporary_tracing",
    "spark/pipelines/decoding",
    "spark/pipelines/landing",
    "spark/source/planning",
}

# Words that once stood for several things, and the term that is used instead.
RETIRED = {
    "aloft": "in flight",
    "borrower": "queue session",
    "courier": "shard pipeline",
    "desk": "dispatcher",
    "lookout": "reaper",
    "office": "transaction service",
    "parcel": "delivery batch",
    "shelf": "queue index",
    "shelves": "queue indexes",
    "vow": "promise",
}
# Subjects of sentences that leave open which component acts.
VAGUE = re.compile(r"\b(?:whoever|nobody|somebody|anybody|everybody|what becomes of|gone on from)\b", re.I)
PROSE = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def modules() -> Iterator[Path]:
    yield from sorted(SOURCE.rglob("*.py"))


def test_folders_are_small() -> None:
    faults = []
    for folder in sorted({path.parent for path in modules()}):
        count = len(list(folder.glob("*.py")))
        name = str(folder.relative_to(SOURCE))
        if count > MOST_FILES_OF_A_FOLDER and name not in LARGE_FOLDERS:
            faults.append(f"{name} has {count} files")
    assert faults == []


def test_siblings_do_not_differ_by_an_s() -> None:
    for folder in {path.parent for path in modules()}:
        names = {path.stem for path in folder.glob("*.py")} | {
            path.name for path in folder.iterdir() if path.is_dir()
        }
        assert {name for name in names if f"{name}s" in names} == set(), folder


def test_modules_are_nouns() -> None:
    names = {str(path.relative_to(SOURCE).with_suffix("")) for path in modules()}
    gerunds = {name for name in names if re.search("(?<!r)ing$", name)}
    assert gerunds == GERUNDS, "name a module by a noun, or add its name to the terms of the field"


def words_of(path: Path) -> Iterator[str]:
    """The words of the identifiers of a file."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.NAME:
                yield from (word.lower() for word in WORD.findall(token.string))


def test_identifiers_use_the_vocabulary() -> None:
    faults: set[str] = set()
    for path in modules():
        faults |= {f"{path.relative_to(ROOT)}: {word}" for word in words_of(path) if word in RETIRED}
    assert faults == set()


def test_sentences_name_the_component_that_acts() -> None:
    """Documents and code, but for the simulator and names of tests."""
    documents = [ROOT / name for name in PROSE]
    documents += [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"]
    faults = []
    for path in [*modules(), *documents]:
        if path.is_relative_to(SOURCE / "testing"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if VAGUE.search(re.sub(r"`[^`]*`", "", line)):
                faults.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert faults == []


def test_every_term_of_the_glossary_is_used() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    folders = (("docs", "*.md"), ("src", "*.py"), ("native", "*.hpp"), ("tests", "*.py"))
    files = [path for folder, kind in folders for path in (ROOT / folder).rglob(kind)]
    texts = [path.read_text(encoding="utf-8") for path in files if path.name != "glossary.md"]
    used = " ".join(re.sub(r"\s+", " ", text).lower() for text in texts)
    rows = re.findall(r"^\| ([^|]+?) \| (?!meaning)", glossary, re.MULTILINE)
    terms = [term for row in rows for term in re.sub(r" \(.*?\)", "", row).lower().split(", ")]
    assert len(terms) > 90 and [term for term in terms if term not in used and term != "---"] == []
    assert len(set(rows) - {"---"}) == len([row for row in rows if row != "---"]), "a term is defined twice"

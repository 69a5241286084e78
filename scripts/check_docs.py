"""Checks that the documents point at things that exist.

Every relative link in a Markdown file leads to a file, and to a heading where it names one; every test
that it names in backticks is in a file of tests; every file that ARCHITECTURE.md names so is in the tree.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {"build", "dist"}
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(test_\w+)`")
TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
NAMED_FILE = re.compile(r"`([\w./-]+/[\w./-]*|[\w-]+\.(?:py|pyi|cpp|hpp|md|toml|txt|sh))`")


def documents() -> Iterator[Path]:
    """Every Markdown file of the project, hidden and built folders left out."""
    for path in sorted(ROOT.rglob("*.md")):
        parts = path.relative_to(ROOT).parts
        if not any(part.startswith(".") or part in SKIPPED for part in parts):
            yield path


def anchor(heading: str) -> str:
    """The fragment by which a heading is linked to."""
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.replace(" ", "-")


def anchors(path: Path) -> set[str]:
    """The fragments of a document's headings."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {anchor(heading) for heading in HEADING.findall(text)}


def broken_links(document: Path) -> Iterator[str]:
    """One line for each relative link of the document that leads nowhere."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        place, _, fragment = target.partition("#")
        path = (document.parent / place).resolve() if place else document
        name = document.relative_to(ROOT)
        if not path.exists():
            yield f"{name}: the link {target} leads to no file"
        elif fragment and path.suffix == ".md" and fragment not in anchors(path):
            yield f"{name}: the link {target} leads to no heading"


def tests() -> set[str]:
    """The names of all tests."""
    return {name for path in (ROOT / "tests").rglob("*.py") for name in TEST.findall(path.read_text("utf-8"))}


def missing_tests(document: Path, known: set[str]) -> Iterator[str]:
    """One line for each test named in backticks that there is not."""
    for name in sorted(set(NAMED_TEST.findall(document.read_text(encoding="utf-8"))) - known):
        yield f"{document.relative_to(ROOT)}: there is no test {name}"


def missing_files(document: Path) -> Iterator[str]:
    """One line for each file or folder named in backticks that is nowhere in the tree."""
    places = [ROOT, ROOT / "src", ROOT / "src" / "hawser"]
    for name in sorted(set(NAMED_FILE.findall(document.read_text(encoding="utf-8")))):
        if not any((place / name).exists() for place in places):
            yield f"{document.relative_to(ROOT)}: there is no {name}"


def main() -> int:
    """Prints every fault; 1 if there is one."""
    faults: list[str] = []
    count = 0
    known = tests()
    for document in documents():
        count += 1
        faults.extend(broken_links(document))
        faults.extend(missing_tests(document, known))
    architecture = ROOT / "ARCHITECTURE.md"
    if architecture.exists():
        faults.extend(missing_files(architecture))
    else:
        faults.append("ARCHITECTURE.md is missing")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"docs: {count} documents, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

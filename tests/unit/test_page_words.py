"""The pages name what exists, and the code names pages and chapters that exist."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from mpsd.api.method_table import METHODS
from mpsd.config.options import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
DOTTED = re.compile(r"`([a-z]+\.[a-z_]+)`")
FILE_NAME = re.compile(r"\.(py|md|toml|conf|txt|log|db|c|h|def|so|json|sock|service)$")
FOREIGN = {"cuda.core"}  # of cuda-python
CHAPTER = re.compile(r'docs/([a-z0-9/-]+\.md)(?:, "([^"]+)")?')


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sources() -> Iterator[Path]:
    for folder, ending in (("mpsd", "*.py"), ("clients", "*.py"), ("native", "*.[ch]")):
        yield from (ROOT / folder).rglob(ending)


def is_module(word: str) -> bool:
    """One of mpsd's; others are not looked for, since that would run them."""
    return word.startswith("mpsd.") and find_spec(word) is not None


def test_every_option_and_event_that_a_page_names_exists() -> None:
    operating = (ROOT / "docs/operating.md").read_text().partition("## Events")[2]
    events = set(re.findall(r"^\| `([a-z_.]+)` \|", operating, re.MULTILINE))  # checked against the code by test_events.py
    topics = re.findall(r"^\| `([a-z_.]+)` \|", (ROOT / "docs/protocol.md").read_text().partition("## Events")[2], re.MULTILINE)
    known = events | set(METHODS) | set(topics) | FOREIGN
    unknown = []
    for page in pages():
        for word in DOTTED.findall(page.read_text()):
            if word not in OPTIONS and word not in known and not FILE_NAME.search(word) and not is_module(word):
                unknown.append(f"{page.relative_to(ROOT)}: {word}")
    assert not unknown


def test_every_page_and_chapter_that_the_code_names_exists() -> None:
    missing = []
    for source in sources():
        for name, chapter in CHAPTER.findall(source.read_text()):
            page = ROOT / "docs" / name
            if not page.exists() or (chapter and f"# {chapter}\n" not in page.read_text()):
                missing.append(f"{source.relative_to(ROOT)}: docs/{name} {chapter}".rstrip())
    assert not missing


def test_every_place_and_target_that_contributing_names_exists() -> None:
    """A newcomer follows CONTRIBUTING.md word by word: files, constants, targets of make."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    written = set(re.findall(r"`([\w./]+/[\w./]*|[\w/]+\.(?:py|md))`", page)) | set(re.findall(r" (tests/\S+)", page))
    examples = {"mpsd/faults/sources/NAME.py", "mpsd/api/methods/SUBJECT.py", "mpsd/wire/SUBJECT_results.py"}
    bases = (ROOT, ROOT / "mpsd", ROOT / "tests", ROOT / "clients", ROOT / "native", ROOT / "mpsd/wire", ROOT / "mpsd/config")
    assert [each for each in sorted(written - examples) if not any((base / each).exists() for base in bases)] == []
    makefile = (ROOT / "Makefile").read_text()
    assert [each for each in re.findall(r"(?:^|`)make ([a-z-]+)\b", page, re.MULTILINE) if f"\n{each}:" not in makefile] == []
    named = re.findall(r"`([A-Z]{2,}|_[a-z_]+)` (?:in|of) `([\w/.]+\.py)`", page)
    assert [f"{name} in {path}" for name, path in named if name not in (ROOT / path).read_text()] == []

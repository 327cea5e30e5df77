"""docs/errors.md: a chapter for each code, with its number, in their order."""

import re
from pathlib import Path

from mpsd.errors import ErrorCode

PAGE = Path(__file__).resolve().parents[2] / "docs/errors.md"
CHAPTER = re.compile(r"^## (\d+) ([A-Z_]+)$\n(.+?)(?=^## )", re.MULTILINE | re.DOTALL)


def test_every_code_has_a_chapter() -> None:
    found = [(int(number), name) for number, name, _ in CHAPTER.findall(PAGE.read_text())]
    assert found == [(code.value, code.name) for code in ErrorCode]


def test_no_chapter_is_empty() -> None:
    assert not [name for _, name, text in CHAPTER.findall(PAGE.read_text()) if len(text.split()) < 15]

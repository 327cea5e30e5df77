"""What a first user types and sees, on docs/transcripts.md: `make transcripts` writes it there, and the tests compare.

Numbers and the width of columns differ from run to run; words must not.
"""

import os
import re
from pathlib import Path

from tests.integration.machine import ROOT

PAGE = ROOT / "docs/transcripts.md"
WRITE = "MPSD_TRANSCRIPTS"  # "write"


class Transcript:
    """The lines of one engine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lines: list[str] = []

    def add(self, prompt: str, typed: str, answer: str) -> None:
        self._lines += [f"{prompt} {typed}", *(line.rstrip() for line in answer.rstrip("\n").splitlines())]

    def check(self) -> None:
        """Compare with the page, or write it there."""
        page = PAGE.read_text()
        block = re.compile(rf"(<!-- transcript: {self.name} -->\n```\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
        found = block.search(page)
        assert found, f"{PAGE.name} has no place for {self.name}"
        text = "\n".join(self._lines) + "\n"
        if os.environ.get(WRITE) == "write":
            _replace(PAGE, page[: found.start(2)] + text + page[found.end(2) :])
        else:
            assert _words(found[2]) == _words(text), f"make transcripts writes it anew:\n{text}"


def _replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def _words(text: str) -> list[str]:
    """Return the lines without what differs from run to run."""
    text = re.sub(r"GPU-[0-9a-f-]{36}", "GPU", text)
    text = re.sub(r"\b[0-9a-f]{16,}\b|\d+(\.\d+)?", "N", text)
    return [re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines()]

"""The commands and programs that the pages show, and what a comment before each says about running it.

The info string of a fence is its language: sh, console (commands with their answers), python, c, toml. A fence without one is
a picture, a table or an answer. A page below docs/tutorials is run from its first block to its last in one shell: `sh` blocks,
and after some of them `text`, which is what they print; numbers may differ, and `...` stands for any text.

A comment directly before the fence, which the page does not show:

    <!-- given: CODE -->        what the block finds: code that runs before it, or with BLOCK in it the code around it
    <!-- not run: REASON -->    why the test cannot run the block
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("clients", "docs", "kmod", "mpsd", "native", "tests")
FENCE = re.compile(r"((?: *<!-- (?:(?!-->).)*? -->\n)?)^( *)```([^\n]*)\n(.*?)^\2```$", re.MULTILINE | re.DOTALL)
NUMBERS = re.compile(r"(?:\d+(?:\.\d+)?(?: ?(?:ms|[smh])(?![a-z]))?)+")
COMMENT = re.compile(r" *<!-- (given|not run): (.*?) -->\n", re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    page: str
    line: int
    language: str
    code: str
    given: str = ""
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def whole(self) -> str:
        """Return the code as it runs."""
        if "BLOCK" in self.given:
            return self.given.replace("BLOCK", self.code)
        return f"{self.given}\n{self.code}" if self.given else self.code


def snippets_of(page: str) -> list[Snippet]:
    text, found = (ROOT / page).read_text(), []
    for match in FENCE.finditer(text):
        before, indent, language, code = match.groups()
        said = COMMENT.fullmatch(before)
        word, value = said.groups() if said else ("", "")
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        line = text[: match.end()].count("\n") - code.count("\n")
        found.append(Snippet(page, line, language, code, **({word.replace(" ", "_"): value} if word else {})))
    return found


def pages() -> list[str]:
    """Return the pages of the checkout, which need not be git's."""
    found = [ROOT.glob("*.md"), *((ROOT / folder).rglob("*.md") for folder in FOLDERS)]
    return sorted(str(path.relative_to(ROOT)) for paths in found for path in paths)


TUTORIALS = [page for page in pages() if page.startswith("docs/tutorials/")]


def difference(shown: str, said: str) -> str:
    """Return what a block printed if it is not what the page shows, with every number written as 0; otherwise nothing."""
    wanted, found = plain(shown), plain(said)
    pattern = ".*".join(re.escape(part) for part in wanted.split("..."))
    return "" if re.fullmatch(pattern, found, re.DOTALL) else f"shown:\n{wanted}\nsaid:\n{found}"


def plain(text: str) -> str:
    lines = (re.sub(" +", " ", NUMBERS.sub("0", line)).strip() for line in text.splitlines())
    return "\n".join(lines)

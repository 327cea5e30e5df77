"""Pages for people: no paths of one machine, no dead links, no pages without a link."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
CHAPTER_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)#([^)\s]+)\)")
PAGE = re.compile(r"\b(?:docs|kmod|tests|clients|native|mpsd)/[\w/.-]*\.md\b")
PLACES_OF_A_MACHINE = ("/wor" + "k/", "/roo" + "t/", "/hom" + "e/")  # in two parts: this file is looked at too


def tracked() -> list[Path]:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def pages() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def test_no_file_names_a_place_of_somebodys_machine() -> None:
    found = []
    for path in tracked():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found += [f"{path.relative_to(ROOT)}:{number}: {place}" for place in PLACES_OF_A_MACHINE if place in line]
    assert not found


def test_links_between_pages_lead_somewhere() -> None:
    dead = []
    for page in pages():
        for target in LINK.findall(page.read_text()):
            if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert not dead


def anchors(page: Path) -> set[str]:
    """Return the names by which a rendered page's chapters are linked, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_links_to_chapters_lead_somewhere() -> None:
    dead = []
    for page in pages():
        for target, chapter in CHAPTER_LINK.findall(page.read_text()):
            other = page.parent / target if target else page
            if other.suffix == ".md" and "://" not in target and chapter not in anchors(other):
                dead.append(f"{page.relative_to(ROOT)}: {target}#{chapter}")
    assert not dead


def test_each_page_that_a_source_names_exists() -> None:
    """Comments say where the prose is, from the root of the checkout."""
    sources = [path for path in tracked() if path.suffix in ("", ".py", ".c", ".h", ".cocci", ".sh", ".toml")]
    named = {(path, name) for path in sources for name in PAGE.findall(path.read_text(errors="replace"))}
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in sorted(named) if not (ROOT / name).exists()]


def test_each_test_that_a_page_names_exists() -> None:
    """A name that ends in an underscore stands for several."""
    tests = [path for path in tracked() if ROOT / "tests" in path.parents]
    known = {path.stem for path in tests}
    known.update(*(re.findall(r"\bdef (test_\w+)", path.read_text()) for path in tests if path.suffix == ".py"))
    named = {(page, name) for page in pages() for name in re.findall(r"\btest_\w+", page.read_text())}
    assert not [
        f"{page.relative_to(ROOT)}: {name}" for page, name in sorted(named) if not name.endswith("_") and name not in known
    ]


def test_commands_can_be_pasted_with_the_words_beside_them() -> None:
    """Those are comments of the shell: a block is copied as a whole, at three in the morning too."""
    words = re.compile(r"^(make|mpsctl|echo|systemctl|journalctl|kill|tail|dmesg|pip|/opt/\S+|tests/\S+)\b[^#]*\S {2,}(?!#)\S")
    bare = []
    for page in pages():
        for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
            bare += [f"{page.relative_to(ROOT)}: {line}" for line in block.split("\n") if words.match(line)]
    assert not bare


def test_every_page_starts_with_its_title() -> None:
    assert not [str(page.relative_to(ROOT)) for page in pages() if not page.read_text().startswith("# ")]


def test_no_line_ends_in_blanks_and_every_file_ends_its_last_line() -> None:
    """The vendor's own texts in the tests are exempt: they are what they are."""
    checked = {".py", ".c", ".h", ".md", ".toml", ".sh", ".service"}
    wrong = []
    for path in tracked():
        text = path.read_text() if path.suffix in checked else ""
        name = path.relative_to(ROOT)
        wrong += [f"{name}:{number}" for number, line in enumerate(text.split("\n"), 1) if line != line.rstrip(" \t\r")]
        wrong += [f"{name}: no newline at its end"] if text and not text.endswith("\n") else []
    assert not wrong

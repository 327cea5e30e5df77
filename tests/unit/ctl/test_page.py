"""The page of a fault: well-formed, one file, without scripts, and text from other processes is never markup."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
from mpsctl.page import render_page
from msgspec.structs import replace

from mpsd.model.fault import Incident, Party
from mpsd.wire.incidents import incident_report
from tests.unit.api.fake_daemon import OWNER
from tests.unit.api.fake_incidents import ALICES, BOBS, of_the_gpu, proven, suspected
from tests.unit.ctl.console import open_console
from tests.unit.ctl.test_faults import NAMES, told

NASTY = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\x1b[2J\u202e</style></svg>"
_VOID = {"meta"}


class Reader(HTMLParser):
    """Everything on a page; fails where a tag is not closed as it was opened."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)


def page(of: Incident, reader: int | None = None) -> Reader:
    found = Reader()
    found.feed(render_page(told(of, reader), NAMES))
    found.close()
    assert found.open == []
    return found


EVERYTHING = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "th", "td", "ul", "li", "footer", "div",
    "span", "i", "b",
}  # fmt: skip


def nasty() -> Incident:
    seen = replace(proven().evidence[0], text=NASTY, kernel=NASTY, access=NASTY[:20])
    parties = tuple(Party(process, 1000, NASTY, NASTY) for process in (ALICES, BOBS))
    return replace(
        proven(), kernel=NASTY, access=NASTY, domain=NASTY, gpu=NASTY, evidence=(seen,), parties=parties,
        deeds=(replace(proven().deeds[0], text=NASTY),), victims=(ALICES, BOBS),
    )  # fmt: skip


@pytest.mark.parametrize("of", [proven(), suspected(), of_the_gpu(), nasty()], ids=["proven", "suspected", "gpu", "nasty"])
def test_a_page_has_nothing_that_runs_or_comes_from_elsewhere(of: Incident) -> None:
    found = page(of)
    assert found.tags <= EVERYTHING
    for _, name, value in found.attributes:
        assert not name.startswith("on")
        assert name not in ("href", "src", "xlink:href", "action")
        assert "url(" not in value
    text = render_page(told(of), NAMES)
    assert "default-src 'none'" in text
    assert "://" not in text
    assert "@import" not in text


def test_nobodys_words_are_markup() -> None:
    """Wherever they stand they are shown as what they are, less what would move a cursor or turn the line around."""
    shown = NASTY.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    words = "\n".join(page(nasty()).words)
    assert words.count(shown) >= 8
    raw = render_page(told(nasty()), NAMES)
    assert "<script" not in raw
    assert "<img" not in raw
    assert not {"\x1b", "\u202e"} & set(raw)
    assert raw.count("</style>") == 1


def test_a_page_says_what_the_report_says() -> None:
    words = " ".join(" ".join(page(proven()).words).split())
    for said in (
        "Fault 1", "python3[586] of user alice in container train.service under lease 1 wrote to 0x7f3a00001000 (no mapping)",
        "GPU memory page fault", "+127.0 ms", "names trainer[700], which proves nothing", "trainer[700] of user bob",
        "domain d1 is recycled", "mpsctl pardon lease:1:1000", "2023-11-14 22:12:20",
    ):  # fmt: skip
        assert said in words, said


def test_a_page_of_what_one_may_not_know_does_not_tell() -> None:
    words = " ".join(page(proven(), 2000).words)
    for secret in ("python3", "train.service", "0x7f3a", "oob_write", "lease:1", "alice"):
        assert secret not in words
    assert "trainer[700]" in words


def test_every_piece_of_evidence_is_in_the_picture() -> None:
    """At its place: later is further right, and within the picture."""
    found = page(proven())
    kinds = [value for tag, name, value in found.attributes if (tag, name) == ("b", "class")]
    places = [float(value[5:-1]) for tag, name, value in found.attributes if (tag, name) == ("b", "style")]
    assert sorted(kinds[: len(places)]) == ["done", "done", "proof", "seen", "seen", "seen"]
    assert kinds[0] == "proof"
    assert places[:4] == sorted(places[:4])
    assert max(places) <= 100
    assert {"ms" in word for word in found.words if word.startswith("+")} == {True}


async def test_a_page_is_written_and_said_to_be(tmp_path: Path, short_dir: Path) -> None:
    file = tmp_path / "fault.html"
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("fault", "1", "--html", str(file)) == f"fault 1 is in {file}\n"
        text = file.read_text()
        assert text.startswith("<!doctype html>")
        assert "prefers-color-scheme: dark" in text
        assert (await console.run("fault", "9", "--html", str(file))).status == 1
        assert file.read_text() == text, "a fault that there is not leaves the file alone"
        done = await console.run("fault", "1", "--html", str(tmp_path / "no/such"), peer=OWNER)
    assert (done.status, done.err) == (1, "mpsctl fault: the answer cannot be written: No such file or directory\n")


def test_the_report_of_a_row_without_words_is_a_page() -> None:
    empty = replace(of_the_gpu(), evidence=(), deeds=(), xids=())
    assert "b" not in page(empty).tags
    assert incident_report(empty)["evidence"] == []

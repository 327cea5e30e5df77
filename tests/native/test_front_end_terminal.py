"""A daemon's text, which may repeat a client's name, can only be displayed by a terminal; ordinary text comes out byte for
byte."""

import random
from pathlib import Path
from unicodedata import bidirectional, category

import pytest

from tests.native.ui_daemon import Conversation, Run, UiDaemon
from tests.seeds import seeds

ORDINARY = [
    b"",
    b"PID       ID        SERVER    DEVICE     NAMESPACE     COMMAND\n",
    b"100.0\n",
    b"\ta\tb\n\n",
    "größer 数据 \N{GRINNING FACE} e\N{COMBINING ACUTE ACCENT}\n".encode(),
    bytes(range(0x20, 0x7F)) + b"\n",
]
ODD = {
    b"\x1b[2J": rb"\x1b[2J",
    b"\x1b]0;owned\x07": rb"\x1b]0;owned\x07",
    b"a\rb\bc\x7f\0": rb"a\x0db\x08c\x7f\x00",
    "\x9b2J".encode(): rb"\xc2\x9b2J",  # CSI of eight bits, in UTF-8 and alone
    b"\x9b2J": rb"\x9b2J",
    "\N{RIGHT-TO-LEFT OVERRIDE}moc".encode(): rb"\xe2\x80\xaemoc",
    "\N{LINE SEPARATOR}".encode(): rb"\xe2\x80\xa8",
    "\N{ZERO WIDTH SPACE}".encode(): rb"\xe2\x80\x8b",
    "\N{TAG LATIN SMALL LETTER A}".encode(): rb"\xf3\xa0\x81\xa1",
    b"\xc0\x9b": rb"\xc0\x9b",  # longer forms than UTF-8 has
    b"\xe0\x82\x9b": rb"\xe0\x82\x9b",
    b"\xf0\x80\x82\x9b": rb"\xf0\x80\x82\x9b",
    b"\xed\xa0\x80": rb"\xed\xa0\x80",  # half of a pair of UTF-16
    b"\xf4\x90\x80\x80": rb"\xf4\x90\x80\x80",  # above Unicode
    b"\xf8\x88\x80\x80\x80": rb"\xf8\x88\x80\x80\x80",
    b"\xe2\x82": rb"\xe2\x82",  # cut
    b"\xe2\x82a": rb"\xe2\x82a",
    b"\xff\xfe": rb"\xff\xfe",
}


def said(run: Run, place: Path, *texts: bytes) -> list[tuple[bytes, bytes]]:
    """Return what the front end writes to stdout and stderr when the daemon sends each of the texts for both."""

    def converse(conversation: Conversation) -> None:
        conversation.greet()
        conversation.next_command()
        conversation.answer(b"O" + texts[len(found)], b"E" + texts[len(found)])

    found: list[tuple[bytes, bytes]] = []
    with UiDaemon(place, converse):
        for _ in texts:
            done = run("a")
            found.append((done.stdout, done.stderr))
    return found


def test_ordinary_text_comes_out_byte_for_byte(run: Run, short_dir: Path) -> None:
    assert said(run, short_dir, *ORDINARY) == [(text, text) for text in ORDINARY]


def test_what_moves_the_cursor_is_written_out(run: Run, short_dir: Path) -> None:
    whole, shown = b"<%s>\n" % b"><".join(ODD), b"<%s>\n" % b"><".join(ODD.values())
    assert said(run, short_dir, whole, *list(ODD)[-3:]) == [(text, text) for text in (shown, *list(ODD.values())[-3:])]


def test_so_are_the_last_words_of_one_that_will_not_talk(run: Run, short_dir: Path) -> None:
    def converse(conversation: Conversation) -> None:
        conversation.peer.recv(100)
        conversation.peer.send(b"E\x1b[2Jno\n")
        conversation.peer.send(b"X\x03")

    with UiDaemon(short_dir, converse):
        assert run("a").stderr == b"\\x1b[2Jno\n"


@pytest.mark.parametrize("seed", seeds(5, 5))
def test_no_bytes_do_more_than_be_shown(run: Run, short_dir: Path, seed: int) -> None:
    rng = random.Random(seed)
    parts = [*ODD, *ORDINARY, *("é", "数", "\x85", "\N{LEFT-TO-RIGHT MARK}"), *(rng.randbytes(1) for _ in range(50))]
    encoded = [part.encode() if isinstance(part, str) else part for part in parts]
    [(shown, _)] = said(run, short_dir, b"".join(rng.choices(encoded, k=1000))[: 16 * 1024 - 1])
    text = shown.decode()  # raises if it is not UTF-8
    assert not [each for each in text if each not in "\n\t" and category(each) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [each for each in text if bidirectional(each) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")]

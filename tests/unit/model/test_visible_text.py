"""Text of others in what mpsd prints and logs: shown, and no more."""

import os
from pathlib import Path

import pytest

from mpsd.check.probes import Finding, Grade
from mpsd.check.report import render_text
from mpsd.domains.public_log import PublicLog
from mpsd.log.journal import render_human
from mpsd.model.visible_text import visible

NASTY = "a\x1b[2J\x9b\u202e\x07"
SHOWN = r"a\x1b[2J\x9b\u202e\x07"


@pytest.mark.parametrize(
    ("text", "keep", "shown"),
    [
        ("", "", ""),
        ("ps -p 1: größer 数据", "", "ps -p 1: größer 数据"),
        (NASTY, "", SHOWN),
        ("a\nb\tc\r", "", r"a\nb\tc\r"),
        ("a\nb\tc\r", "\n\t", "a\nb\tc\\r"),
        ("\udc9b", "", r"\udc9b"),
    ],
)
def test_what_is_not_printable_is_an_escape(text: str, keep: str, shown: str) -> None:
    assert visible(text, keep) == shown


def test_the_report_of_a_check() -> None:
    text = render_text([Finding("pipe directory", Grade.BAD, f"/tmp/{NASTY} is another user's", f"rm -r /tmp/{NASTY}")])
    assert text.count(SHOWN) == 2
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4


def test_a_trace_in_the_log() -> None:
    facts = {"time": "2026-11-23T00:00:00+00:00", "level": "error", "event": "ui.bug", "exception": f"Traceback\n  {NASTY}"}
    assert render_human(facts, colours=False).endswith(f" ui.bug\n    Traceback\n      {SHOWN}")


def test_a_clients_name_in_control_log(tmp_path: Path) -> None:
    """As `ps` has it.  Callers follow this file with `tail -f`."""
    log = PublicLog(tmp_path, "/pipe", False, lambda *words, **facts: None)
    log.write(f"Cmd:ps\nPID\tCOMMAND\n17\t{NASTY}\n")
    log.close()
    lines = (tmp_path / "control.log").read_text().splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["Cmd:ps", "PID\tCOMMAND", f"17\t{SHOWN}"]
    assert all(f"Control {os.getpid():5d}" in line for line in lines)

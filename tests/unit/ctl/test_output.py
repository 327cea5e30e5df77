"""All output, of any form: text from other processes cannot control a terminal."""

import json
from io import StringIO

import pytest
from mpsctl.output import Column, Output, as_json, facts, table
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from tests.unit.ctl.console import Terminal, surroundings

NASTY = "a\x1b[2J\x1b]0;owned\x07\x9b2J\u202e\x7f"
SHOWN = r"a\x1b[2J\x1b]0;owned"  # rich drops a bell by itself; the others follow
NEVER = set("\x1b\x07\x9b\u202e\x7f")
MADE: dict[str, RenderableType] = {
    "text": f"domain {NASTY} is ready\nand more",
    "styled": Text(f"mpsd {NASTY}"),
    "group": Group(Text(NASTY), f"and {NASTY}"),
    "facts": facts({NASTY: NASTY}),
    "table": table([Column("NAME", lambda row: row)], [NASTY], "none", 200),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("to", [StringIO, Terminal])
def test_text_is_shown_and_does_nothing(made: str, to: type[StringIO]) -> None:
    stdout = to()
    Output(surroundings(stdout, NO_COLOR="1", COLUMNS="200"), is_json=False).document({}, lambda: MADE[made])
    written = stdout.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")  # bold titles, of our own
    assert SHOWN in written
    assert not NEVER & set(written)
    assert made != "text" or written.endswith("is ready\nand more\n"), "lines stay lines"


def test_the_live_screen_moves_the_cursor_by_itself_alone() -> None:
    stdout = Terminal()
    console = Output(surroundings(stdout, TERM="xterm"), is_json=False).console(stdout, 100)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text(f"{NASTY}; trying again"), refresh=True)
    assert "\x1b[?1049h" in stdout.getvalue()
    assert SHOWN in stdout.getvalue()
    assert not [each for each in ("\x1b[2J\x1b]", "\x9b", "\u202e") if each in stdout.getvalue()]


@pytest.mark.parametrize("value", [NASTY, {NASTY: [NASTY, 1, None]}, "größer 数据 😀", "\udc80 \U000e0061", "a\nb\tc\\\"d"])
def test_json_has_the_same_values_and_is_only_shown(value: object) -> None:
    for written in (as_json(value), as_json(value, indent=2)):
        assert json.loads(written) == value
        assert all(each.isprintable() or each == "\n" for each in written)
    assert "größer" in as_json("größer")

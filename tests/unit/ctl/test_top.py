"""The pure parts of `top`: bars, order of cells, and text of other programs on the screen."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from mpsctl.output import Output
from mpsctl.session import Session
from mpsctl.top import bars
from mpsctl.top.app import Top
from mpsctl.top.clients import Row
from mpsctl.top.frame import Frame, memory_cell, sm_cell, title
from mpsctl.top.views import VIEWS, Shown, command_line, prepare
from mpsd_client import values
from rich.text import Text

from tests.unit.ctl.console import Terminal, surroundings

_ROW = Row(
    pid=586, start_time=5860, uid=1000, user="alice", container="", domain="d1", lease_id=None, sm_asked_percent=None,
    sm_held_percent=100.0, sm_reserved_count=None, sm_held_count=None, memory_asked_bytes=None, memory_held_bytes=None,
    state="running", faults=0,
)  # fmt: skip


def row(**facts: Any) -> Row:
    return replace(_ROW, **facts)


@pytest.mark.parametrize(
    ("used", "granted", "asked", "drawn"),
    [
        (0.5, 0.75, 1.0, "████▒▒░░"),
        (None, 0.25, None, "▒▒······"),
        (0.001, None, None, "█·······"),
        (0.0, 0.0, 0.0, "········"),
        (2.0, None, None, "████████"),
        (0.75, 0.25, 0.5, "██████··"),
    ],
)
def test_a_bar_has_a_character_for_each_share(
    used: float | None, granted: float | None, asked: float | None, drawn: str
) -> None:
    assert bars.bar(8, used, granted, asked) == drawn


def test_a_sparkline_ends_with_the_last_value() -> None:
    assert bars.spark([0.0, 0.5, 1.0, None, 1.5], 1.0, 4) == "▅█ █"
    assert bars.spark([1.0], 1.0, 3) == "  █"


def test_cells_are_sorted_by_what_they_mean() -> None:
    cells = ["-", "2h05m", "900K", "1.5G", "20G", "17", "45s", "alice", "Bob", "▒▒···· 12.5/25%", "█····· 3G/all"]
    assert sorted(cells, key=bars.order) == [
        "▒▒···· 12.5/25%", "17", "45s", "2h05m", "900K", "1.5G", "█····· 3G/all", "20G", "alice", "Bob", "-"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "sm", "memory"),
    [
        ({}, "▒▒▒▒▒▒ 100%", "█····· 5G/all"),
        ({"sm_held_percent": 25.0, "sm_asked_percent": 50.0}, "▒▒░··· 25/50%", "█····· 5G/all"),
        ({"memory_held_bytes": 40 << 30}, "▒▒▒▒▒▒ 100%", "█▒▒··· 5G/40G"),
        ({"pid": 7, "memory_held_bytes": 40 << 30}, "▒▒▒▒▒▒ 100%", "▒▒▒··· -/40G"),
        ({"state": "waiting", "sm_held_percent": None}, "-", "-"),
    ],
)
def test_a_client_shows_used_granted_and_asked(facts: dict[str, object], sm: str, memory: str) -> None:
    client = row(**facts)
    assert (sm_cell(client), memory_cell(client, {586: 5 << 30}, 80 << 30)) == (sm, memory)


def test_each_action_and_view_is_a_command() -> None:
    for view in VIEWS:
        for verb in filter(None, (view.verb, view.action and view.action.verb)):
            assert prepare(verb, None)[0].words == verb
    assert command_line("stop", {"pid": 5, "start_time": 7}) == "mpsctl stop --pid 5 --start-time 7"
    assert command_line("pardon", {"key": "job:\033[2J"}) == "mpsctl pardon job:\\x1b[2J"


def test_no_text_of_another_program_reaches_the_terminal() -> None:
    """Only rich's own colours are left, which Text.from_ansi takes out."""
    shown = Shown(surroundings(Terminal()), 60)
    shown.document(None, lambda: Text("a \033]0;title b \033[31mred", style="bold"))
    plain = Text.from_ansi(shown.text).plain
    assert "\\x1b]0;title b \\x1b[31mred" in plain
    assert "\033" not in plain


def test_a_frame_that_is_not_drawn_yet_makes_way_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen that draws slowly shows the newest facts, and nothing piles up."""
    app = Top(Session(prepare("top", None)[1], Output(surroundings(Terminal()), is_json=False)))
    calls: list[object] = []
    monkeypatch.setattr(app, "call_later", calls.append)
    monkeypatch.setattr(app, "_running", True)
    for number in range(100):
        app._bring(ConnectionError(str(number)))
    assert len(calls) == 1
    assert str(app._brought) == "99"


@pytest.mark.parametrize(("ok", "says"), [(False, True), (True, False)])
def test_mpsd_is_not_well_where_its_health_says_so(ok: bool, says: bool) -> None:
    """What ails a user's own clients can be that user's doing, and leaves mpsd well."""
    health = values.Health(ok=ok, state="ready", uptime_seconds=1.0, problems=("domain d1 is blocked",))
    status = SimpleNamespace(
        version="1", state="ready", domains={}, clients=0, queue=0, services=0, services_unserved=0, uptime_seconds=1.0
    )
    line = title(cast(Frame, SimpleNamespace(health=health, status=status, at=0.0)), 400)
    assert ("NOT WELL: domain d1 is blocked" in line) is says

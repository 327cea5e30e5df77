"""How long mpsctl waits for the end of a move, and what it says."""

import io
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from mpsctl.__main__ import REFUSED
from mpsctl.commands import moving
from mpsd_client import ErrorCode, Refused, values

MOVE = values.Move("copying", "GPU-0", "GPU-1", 586, 587, 1.0, 0, 0, 0, 0.1, None, "")
SERVICE = values.Service(
    1, "llm", 0, "GPU-0", "serving", 7, 586, 3, values.ServiceSettings(1, None, None, 0.0, until_done=False, elastic="off"),
    (), 0, None, "", 0, None, None, None, MOVE,
)  # fmt: skip


def said(answers: Iterator[values.Service | None]) -> str:
    """Return what the command prints when mpsd answers so; None: that no arena has the name."""

    def ask(call: Any) -> values.Service:
        if (found := next(answers)) is None:
            raise Refused(ErrorCode.NO_SUCH_ARENA, "NO_SUCH_ARENA", "no arena is called llm")
        return found

    errors = io.StringIO()
    out = SimpleNamespace(is_json=False, surroundings=SimpleNamespace(stderr=errors))
    asked = SimpleNamespace(name="llm", gpu="1", wait=600.0)
    session: Any = SimpleNamespace(asked=asked, out=out, ask=ask, mpsd=SimpleNamespace(ask=ask), all=lambda call: [])
    assert moving.move(session) == REFUSED
    return errors.getvalue()


def for_ever(*first: values.Service, then: values.Service | None) -> Iterator[values.Service | None]:
    yield from first
    while True:
        yield then


@pytest.mark.parametrize(
    "then", [pytest.param(None, id="no arena has its name"), pytest.param(replace(SERVICE, move=None), id="it begins anew")]
)
def test_a_move_that_mpsd_does_not_know_any_more_is_not_waited_for(
    then: values.Service | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica may die at the end of a move: then the next member makes the arena of the newest image."""
    monkeypatch.setattr(moving, "LOST_SECONDS", 0.2)
    text = "mpsctl service move: llm was not moved: mpsd knows of no move any more: see `mpsctl service show`\n"
    assert said(for_ever(SERVICE, then=then)) == text


def test_a_service_that_is_away_for_a_moment_is_waited_for() -> None:
    cancelled = replace(SERVICE, move=replace(MOVE, state="cancelled", why="the replica was late"))
    text = "mpsctl service move: llm was not moved: the replica was late\n"
    assert said(iter([SERVICE, None, replace(SERVICE, move=None), cancelled])) == text

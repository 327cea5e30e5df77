"""For which clients mpsd asks a vendor daemon to end their work."""

import os
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from mpsd.domains.terminate_client import terminate_client
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState


@pytest.mark.parametrize(
    ("state", "is_frozen", "why"),
    [
        ("S", False, ""), ("T", False, "SIGSTOP"), ("t", False, "debugger"), ("S", True, "cgroup"), ("?", False, "cannot read"),
        ("?S", False, "cannot read"),  # it could have been stopped at the first look
        ("S?", False, "cannot read"),
    ],
)  # fmt: skip
async def test_not_for_one_that_is_stopped(monkeypatch: pytest.MonkeyPatch, state: str, is_frozen: bool, why: str) -> None:
    """Its server would wait for it, and all clients there with it."""
    asked: list[str] = []

    async def command(line: str, check: Callable[[], Awaitable[None]]) -> str:
        await check()
        asked.append(line)
        return "0\n"

    async def how_frozen(pid: int) -> str:
        return "is frozen with its cgroup" if is_frozen else ""

    states = [*state]
    monkeypatch.setattr(processes, "state", lambda pid: states.pop(0) if states[1:] else states[0])
    control = SimpleNamespace(command=command, how_frozen=how_frozen)
    domain = SimpleNamespace(name="d1", state=DomainState.READY, control=control, mark_stale=lambda: None, admitted={})
    if why:
        with pytest.raises(VendorFailed, match=why):
            await terminate_client(domain, 7, os.getpid())  # type: ignore[arg-type]
    else:
        await terminate_client(domain, 7, os.getpid())  # type: ignore[arg-type]
    assert bool(asked) is not bool(why)

"""For which clients mpsd asks a vendor daemon to end their work."""

import os
from types import SimpleNamespace

import pytest

from mpsd.domains.terminate_client import terminate_client
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState


@pytest.mark.parametrize(("state", "advice"), [("S", ""), ("T", "kill -CONT"), ("t", "its debugger")])
async def test_not_for_one_that_is_stopped(monkeypatch: pytest.MonkeyPatch, state: str, advice: str) -> None:
    """Its server would wait for it, and all clients there with it."""
    asked: list[str] = []

    async def command(line: str, check: object) -> str:
        asked.append(line)
        return "0\n"

    monkeypatch.setattr(processes, "state", lambda pid: state)
    control = SimpleNamespace(command=command)
    domain = SimpleNamespace(name="d1", state=DomainState.READY, control=control, mark_stale=lambda: None)
    if advice:
        with pytest.raises(VendorFailed, match=advice):
            await terminate_client(domain, 7, os.getpid())  # type: ignore[arg-type]
    else:
        await terminate_client(domain, 7, os.getpid())  # type: ignore[arg-type]
    assert bool(asked) is not bool(advice)

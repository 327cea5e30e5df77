"""A client that mpsd never let in: who is taken for one, when, and what is done."""

import os
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.pool import Pool
from mpsd.domains.strangers import Strangers
from mpsd.host import processes
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.process import ProcessId

SERVER = 999_999_901  # no process
GPUS = ("GPU-a",)


class Vendor:
    """A vendor daemon that the test controls."""

    is_exposed = True

    def __init__(self) -> None:
        self.process: ProcessId | None = processes.process_id(os.getpid())
        self.told: list[str] = []

    async def how_frozen(self, pid: int) -> str:
        return ""

    async def command(self, line: str, seconds: float | None = None, check: object = None) -> str:
        self.told.append(line)
        return "0\n"


class Room:
    """One domain with a list that the test chooses, and the events published about it."""

    def __init__(self, is_ended: bool) -> None:
        self.vendor = Vendor()
        self.domain = Domain("default", 1, GPUS, self.vendor, 48, state=DomainState.READY)  # type: ignore[arg-type]
        self.pool = Pool(None, None, (), None, None, None, None)  # type: ignore[arg-type]
        self.pool.domains["default"] = self.domain
        self.events: list[tuple[str, object]] = []
        self.strangers = Strangers(self.pool, lambda domain: is_ended, self._publish)

    def _publish(self, topic: str, facts: Mapping[str, Any]) -> None:
        self.events.append((topic, facts["pid"]))

    async def listed(self, *pids: int) -> None:
        """Report the server's answer, and run the check after it."""
        view = ServerView(SERVER, 0, "ACTIVE", pids, "default", GPUS)
        self.domain._believe({SERVER: view}, trio.current_time())
        await self.strangers.look(self.domain)


@pytest.mark.parametrize("is_ended", [False, True])
async def test_who_is_listed_in_two_answers_is_told_once(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock, is_ended: bool
) -> None:
    room = Room(is_ended)
    await room.listed(child.pid)
    assert (room.events, room.vendor.told) == ([], [])
    for _ in range(3):
        await trio.sleep(1.1)
        await room.listed(child.pid)
    assert room.events == [("client.stranger", child.pid)]
    assert room.vendor.told == ([f"terminate_client {SERVER} {child.pid}"] if is_ended else [])
    await trio.sleep(10.1)
    await room.listed(child.pid)
    assert len(room.vendor.told) == (2 if is_ended else 0)


async def test_who_is_let_in_meanwhile_is_none(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    """As where its list came before its relay was noted."""
    room = Room(True)
    await room.listed(child.pid)
    found = processes.process_id(child.pid)
    assert found is not None
    room.domain.admit(found)
    await trio.sleep(2.0)
    await room.listed(child.pid)
    assert (room.events, room.vendor.told) == ([], [])


async def test_one_that_was_gone_between_begins_anew(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    room = Room(True)
    await room.listed(child.pid)
    await trio.sleep(2.0)
    await room.listed()
    await room.listed(child.pid)
    assert room.events == []


async def test_an_ended_process_is_nobody(autojump_clock: trio.testing.MockClock) -> None:
    """mpsd's own pid, which stands for clients without a pid here, is ignored too."""
    room = Room(True)
    for _ in range(2):
        await room.listed(999_999_902, os.getpid())
        await trio.sleep(2.0)
    assert (room.events, room.vendor.told) == ([], [])


async def test_a_domain_that_hangs_keeps_no_strangers_of_others(
    child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock
) -> None:
    """A user with strangers in an own domain, whose server stood still, kept those of others from being ended."""

    class Hung(Vendor):
        async def command(self, line: str, seconds: float | None = None, check: object = None) -> str:
            self.told.append(line)
            return await trio.sleep_forever()

    room, hung = Room(True), Hung()
    room.pool.domains = {"d2": Domain("d2", 2, GPUS, hung, 48, state=DomainState.READY), **room.pool.domains}  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(room.strangers.run)
        for _ in range(4):
            for domain in room.pool.domains.values():
                domain._believe({SERVER: ServerView(SERVER, 0, "ACTIVE", (child.pid,), domain.name, GPUS)}, trio.current_time())
            room.pool._changed.notify()
            await trio.sleep(1.1)
        nursery.cancel_scope.cancel()
    assert hung.told == room.vendor.told == [f"terminate_client {SERVER} {child.pid}"]

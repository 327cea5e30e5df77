"""A command to a vendor daemon waits for those before it; by its turn the client may have ended or stopped."""

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import UNREAD
from mpsd.domains.strangers import Strangers
from mpsd.domains.terminate_client import terminate_client
from mpsd.domains.vendor_control import VendorControl, VendorProgram
from mpsd.errors import NoSuchClient, VendorFailed
from mpsd.host import processes
from mpsd.model.domain import DomainState, ServerView
from mpsd.model.process import ProcessId
from mpsd.model.stop import Manner
from mpsd.stop.steps import Steps, StopCase
from tests.inspecting import INSPECTOR

SERVER = 999_999_901  # not a process
FIRST = b"get_default_active_thread_percentage\n"


class Queue:
    """A domain; its vendor daemon answers the first command at the end of `wait`, and the others at once."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        control = VendorControl(VendorProgram(Path("/nothing"), {}, 1.0, 1.0, INSPECTOR), place)
        monkeypatch.setattr(control, "_run", self._run)
        self.domain = Domain("d1", 1, ("GPU-a",), control, 48, state=DomainState.READY)
        self.sent: list[bytes] = []
        self.may_answer = trio.Event()

    async def _run(self, words: list[str], text: bytes, *facts: object) -> tuple[int, bytes]:
        self.sent.append(text)
        await self.may_answer.wait()
        return 0, b"0\n"

    @asynccontextmanager
    async def wait(self, act: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
        """Run `act`; its command has its turn after the block."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.domain.control.command, FIRST.decode().strip())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(act)
            while not self.domain.control._one_at_a_time.statistics().tasks_waiting:  # noqa: ASYNC110  a thread looks first
                await trio.sleep(0.001)
            yield
            self.may_answer.set()


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    return Queue(tmp_path, monkeypatch)


def end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.wait()


def found(child: "subprocess.Popen[bytes]") -> ProcessId:
    process = processes.find(child.pid)
    assert process is not None
    return process


async def test_a_command_is_checked_in_its_turn_and_not_sent_if_that_fails(queue: Queue) -> None:
    ended = False

    def check() -> None:
        if ended:
            raise NoSuchClient("client 586 has ended")

    async def terminate() -> None:
        with pytest.raises(NoSuchClient):
            await terminate_client(queue.domain, 512, 586, check)

    async with queue.wait(terminate):
        ended = True
    assert queue.sent == [FIRST]


async def test_the_work_of_a_client_that_has_stopped_since_is_not_ended(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would wait for that client, and all other clients would stand still."""
    states = {os.getpid(): "S"}
    monkeypatch.setattr(processes, "state", states.__getitem__)

    async def terminate() -> None:
        with pytest.raises(VendorFailed, match="is stopped"):
            await terminate_client(queue.domain, SERVER, os.getpid())

    async with queue.wait(terminate):
        states[os.getpid()] = "T"
    assert queue.sent == [FIRST]


async def test_a_stop_ends_the_work_of_no_later_process(queue: Queue, child: "subprocess.Popen[bytes]") -> None:
    """Another client of the same server could have the pid by then; mpsd ended the work of that client.

    Its own work has not been ended: where another program killed it, mpsd has to hold that work, or its co-runners die.
    """
    process = found(child)
    pidfd = processes.open_pidfd(process)
    assert pidfd is not None

    async def may_end() -> bool:
        return True

    async def no_servers(_: object) -> list[list[tuple[Domain, int | None]]]:
        return []

    case = StopCase(process, pidfd, [(queue.domain, SERVER)], may_end)
    released: list[ProcessId] = []
    steps = Steps(Manner(), None, no_servers, released.append, notes=None)  # type: ignore[arg-type]  # it freezes none

    async with queue.wait(lambda: steps.run([case])):
        end(child)
    assert queue.sent == [FIRST]
    assert case.result.has_ended
    assert not case.steps
    assert not released


async def test_a_command_of_an_operator_ends_the_work_of_no_later_process(
    queue: Queue, child: "subprocess.Popen[bytes]"
) -> None:
    """Nor does mpsd as it quits: neither has a check of its own."""

    async def terminate() -> None:
        with pytest.raises(VendorFailed, match="has ended"):
            await terminate_client(queue.domain, SERVER, child.pid)

    async with queue.wait(terminate):
        end(child)
    assert queue.sent == [FIRST]


async def test_no_later_process_is_ended_as_a_stranger(queue: Queue, child: "subprocess.Popen[bytes]") -> None:
    process = found(child)
    queue.domain.servers = {SERVER: ServerView(SERVER, 0, "ACTIVE", (child.pid,), "d1", ("GPU-a",))}
    strangers = Strangers(None, lambda domain: True, lambda topic, facts: None)  # type: ignore[arg-type]

    async with queue.wait(lambda: strangers._end(queue.domain, process)):
        end(child)
    assert queue.sent == [FIRST]


@pytest.mark.parametrize("looks", [["", "late"], [UNREAD, "late"]], ids=["it can be read at first", "it can never be read"])
async def test_a_look_at_a_client_keeps_no_other_command_waiting(
    queue: Queue, child: "subprocess.Popen[bytes]", autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch, looks: list[str]
) -> None:  # fmt: skip
    """Its user held its cgroup, and each command about such a client kept all others of the domain waiting for a second."""
    process = found(child)
    queue.domain.admit(process)
    queue.domain.uids[process] = os.geteuid()
    queue.may_answer.set()
    is_answered = trio.Event()

    async def how_frozen(pid: int) -> str:
        if (how := looks.pop(0) if looks else "") == "late":
            await is_answered.wait()
        return UNREAD if how == "late" else how

    monkeypatch.setattr(queue.domain.control, "how_frozen", how_frozen)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(terminate_client, queue.domain, SERVER, child.pid)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            await queue.domain.control.command(FIRST.decode().strip())
        is_answered.set()
    assert sorted(queue.sent) == [FIRST, f"terminate_client {SERVER} {child.pid}\n".encode()]

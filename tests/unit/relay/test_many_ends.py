"""Clients that end in one moment, of which one user can have thousands: each turn of the event loop acts on some of them."""

import os
import socket
from collections import Counter
from contextlib import ExitStack

import trio
import trio.testing

from mpsd.host import processes
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.assignment import Assignment
from mpsd.relay.client_connection import ClientConnection
from mpsd.relay.forwarding import Forwarding
from mpsd.relay.hang_ups import HangUps
from tests.unit.relay.test_conversation import NobodyApart
from tests.unit.relay.test_wishes import FullPool, Leases, Reader

MANY, MOST = 200, 64


class Turns(trio.abc.Instrument):
    """Counts what happened in each turn of the event loop."""

    def __init__(self) -> None:
        self.turn, self.counted = 0, Counter[int]()

    def after_io_wait(self, timeout: float) -> None:
        self.turn += 1

    def count(self) -> None:
        self.counted[self.turn] += 1


def counted_turns() -> Turns:
    made = Turns()
    trio.lowlevel.add_instrument(made)
    return made


class NoRoom(Leases):
    def __init__(self, turns: Turns) -> None:
        self.turns, self.waiting, self.left = turns, 0, 0

    def grant_of(self, process):
        return None

    def leave(self, process):
        self.left += 1

    async def admit(self, process, credentials, told):
        self.waiting += 1
        try:
            await trio.sleep_forever()
        finally:
            self.turns.count()


async def test_processes_that_end_together_stop_waiting_in_small_steps(monkeypatch) -> None:
    turns, endings = counted_turns(), counted_turns()
    admission = NoRoom(turns)
    end, all_end = os.pipe()  # stands for every pidfd: all are readable at once
    monkeypatch.setattr(processes, "open_pidfd", lambda process: os.dup(end))
    monkeypatch.setattr("mpsd.host.process_exit.how_ended", lambda *of: endings.count())
    pool = FullPool()
    pool.asked = []
    assignment = Assignment(pool, admission, NobodyApart(), is_per_gpu=False, reader=Reader())
    assignment.may_place.set()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for pid in range(1, MANY + 1):
                who = Credentials(pid, 0, 0)
                caller = ClientConnection(pid, "control", ours, who, ProcessId(pid, 1), 0.0, Forwarding(ours, False))
                nursery.start_soon(assignment.find_place, caller)
            await trio.testing.wait_all_tasks_blocked()
            assert admission.waiting == MANY
            os.write(all_end, b"x")
    os.close(end)
    os.close(all_end)
    assert admission.left == MANY
    for each in (turns, endings):
        assert each.counted.total() == MANY
        assert max(each.counted.values()) <= MOST


async def test_connections_that_hang_up_together_are_reported_in_small_steps() -> None:
    turns, hang_ups = counted_turns(), HangUps()
    with ExitStack() as pairs, trio.fail_after(10):
        for _ in range(MANY):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            hang_ups.watch(pairs.enter_context(ours), turns.count)
            theirs.close()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hang_ups.run)
            while turns.counted.total() < MANY:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert max(turns.counted.values()) <= MOST

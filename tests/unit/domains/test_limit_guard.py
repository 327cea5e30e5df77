"""The clients that share a window, and the limits that the server gets for each window."""

import re

import pytest
import trio
import trio.testing

from mpsd.domains.handshake_gate import Entrant
from mpsd.domains.limit_guard import Guard
from mpsd.domains.rules.vendor_limits import GIB, MIB, ClientLimits, closed, unlimited
from mpsd.errors import VendorFailed

GPUS = ("GPU-a",)
SMALL, LARGE = ClientLimits(10, (GIB,)), ClientLimits(60, (4 * GIB,))
DEFAULTS = unlimited(GPUS)
SERVER = 770


class VendorDaemon:
    """The limits of one server, and every set of them that newcomers could have met."""

    def __init__(self):
        self.percent, self.memory, self.priority = 100.0, 0, 0
        self.told = []
        self.is_deaf = False

    async def commands(self, lines, seconds=None):
        await trio.sleep(0.001)
        return "".join(self._answer(line) for line in lines)

    def _answer(self, line):
        verb, what, value = re.match(r"([gs]et)_(\w+?) .*?([0-9.]+)M?$", line).groups()
        if verb == "set" and not self.is_deaf:
            if what == "active_thread_percentage":
                self.percent = float(value)
            elif what == "device_pinned_mem_limit":
                self.memory = int(value) * MIB
            else:
                self.priority = int(value)
            self.told.append(self.limits)
        if what == "active_thread_percentage":
            return f"{self.percent:.1f}\n"
        shown = f"{self.memory // GIB}G\n" if self.memory >= GIB else f"{self.memory // MIB}M\n"
        return shown if verb == "get" and self.memory else ""

    @property
    def limits(self):
        return ClientLimits(self.percent, (self.memory,), self.priority)


@pytest.fixture
def daemon():
    return VendorDaemon()


async def start(daemon):
    guard = Guard(GPUS)
    await guard.turn_on([SERVER], DEFAULTS, daemon)
    return guard


def a_client(limits, share=1):
    return Entrant(limits, share, is_client=True)


async def come(guard, daemon, limits, seen, stay=1.0):
    """A client: notes what the server would give it all the while it is on its way."""
    async with guard.window(a_client(limits), daemon) as right:
        await guard.set_limits(SERVER, limits, DEFAULTS, daemon)
        right.give_back()
        until = trio.current_time() + stay
        while trio.current_time() < until:
            seen.append((limits, daemon.limits))
            await trio.sleep(0.1)


async def test_clients_that_come_together_each_meet_their_own_limits(daemon, autojump_clock):
    guard, seen = await start(daemon), []
    async with trio.open_nursery() as nursery:
        for limits in (SMALL, LARGE, unlimited(GPUS), SMALL, LARGE) * 4:
            nursery.start_soon(come, guard, daemon, limits, seen)
    assert {own for own, _ in seen} == {SMALL, LARGE, unlimited(GPUS)}
    assert all(own == met for own, met in seen)
    assert daemon.limits == closed(GPUS)


async def test_clients_without_limits_do_not_wait_for_each_other(daemon, autojump_clock):
    guard, began = await start(daemon), trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(come, guard, daemon, unlimited(GPUS), [])
    assert trio.current_time() - began < 2


async def test_what_a_connection_changes_holds_for_no_later_client(daemon, autojump_clock):
    """A connection of the server's user can send the vendor's commands, also while another one with its limits comes."""
    guard, seen = await start(daemon), []

    async def change():
        async with guard.window(a_client(SMALL), daemon):
            await guard.set_limits(SERVER, SMALL, DEFAULTS, daemon)
            await trio.sleep(0.5)
            daemon.percent = 100.0
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(change)
        await trio.sleep(0.1)
        nursery.start_soon(come, guard, daemon, SMALL, seen)
    assert seen
    assert all(own == met for own, met in seen)


async def test_nobody_is_overtaken_for_ever(daemon, autojump_clock):
    """A stream of equal clients lets the one with other limits in when those before it have arrived."""
    guard, waited = await start(daemon), []

    async def stream():
        for _ in range(50):
            nursery.start_soon(come, guard, daemon, unlimited(GPUS), [])
            await trio.sleep(0.5)

    async def other():
        began = trio.current_time()
        await come(guard, daemon, LARGE, [])
        waited.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream)
        await trio.sleep(3)
        nursery.start_soon(other)
    assert waited[0] < 3


async def test_what_the_servers_own_user_has_set_is_the_most(daemon):
    daemon.percent, daemon.memory = 50.0, 2 * GIB
    guard = await start(daemon)
    async with guard.window(a_client(LARGE), daemon):
        await guard.set_limits(SERVER, LARGE, DEFAULTS, daemon)
        assert daemon.limits == ClientLimits(50, (2 * GIB,))


async def test_a_server_that_was_not_there_before_has_the_defaults_for_its_most(daemon):
    guard = await start(daemon)
    async with guard.window(a_client(LARGE), daemon):
        await guard.set_limits(771, LARGE, ClientLimits(30, (0,)), daemon)
        assert daemon.limits == ClientLimits(30, (4 * GIB,))


async def test_a_daemon_that_does_not_take_the_limits_lets_nobody_in(daemon):
    guard = await start(daemon)
    daemon.is_deaf = True
    with pytest.raises(VendorFailed, match="did not take"):
        async with guard.window(a_client(SMALL), daemon):
            await guard.set_limits(SERVER, SMALL, DEFAULTS, daemon)
    daemon.is_deaf = False
    async with guard.window(a_client(SMALL), daemon):
        await guard.set_limits(SERVER, SMALL, DEFAULTS, daemon)
        assert daemon.limits == SMALL


async def test_who_gives_up_waiting_is_not_waited_for(daemon, autojump_clock):
    guard = await start(daemon)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(come, guard, daemon, SMALL, [])
        await trio.sleep(0.1)
        with trio.move_on_after(0.2):
            await come(guard, daemon, LARGE, [])
        began = trio.current_time()
        await come(guard, daemon, LARGE, [], stay=0.1)
        assert trio.current_time() - began < 1.2


async def test_off_nothing_is_told(daemon):
    guard = Guard(GPUS)
    async with guard.window(a_client(unlimited(GPUS)), daemon):
        pass
    assert daemon.told == []


async def test_arrivals_settle_in_their_order():
    guard = Guard(GPUS)
    first, second, other = guard.expect(7), guard.expect(7), guard.expect(8)
    guard.hear(7)
    assert (await first.settled(0), await second.settled(0), await other.settled(0)) == (True, False, False)
    guard.forget_arrival(7, second)
    guard.hear(7)
    assert not await second.settled(0)
    guard.forget()
    assert await other.settled(0)


async def test_what_was_set_before_the_daemon_went_does_not_hold_after_it(daemon):
    """A client that had its limits set then, and waited for its turn, must have them set again."""
    guard = await start(daemon)
    before = guard.era
    guard.forget()
    assert guard.era != before
    assert not guard.is_on

"""How long a client may keep others out of its domain."""

import math
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from mpsd.domains.handshake_gate import Entrant, HandshakeGate
from mpsd.domains.rules.vendor_limits import unlimited
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.conversation import Conversations, RelaySettings
from mpsd.relay.forwarding import LinkSide
from mpsd.relay.offences import Offences
from tests.unit.relay.test_conversation import HopefulPool

OWN, OTHER = 1, 2  # users
PATIENCE, TIME, LONG = 0.5, 5.0, 30.0
FREE = "no limits"


class VendorDaemon:
    """Answers mpsd or not; and a client's connection as the test does."""

    silence_seconds, is_exposed = 15.0, False

    def __init__(self, path=""):
        self.path, self.is_answering = path, True

    async def is_responsive(self, seconds):
        await trio.sleep(0 if self.is_answering else seconds)
        return self.is_answering

    def socket_path(self, door):
        return self.path

    def is_alive(self):
        return True


def waiter(share, key=FREE):
    return Entrant(key, share, is_client=True)


class Stay:
    """A client of OWN that is inside, and when it becomes overdue."""

    def __init__(self, granted_at=-math.inf, awaits_domain=False, gives_back=False):
        self.gate, self.control, self.gives_back, self.overdue_at = HandshakeGate(), VendorDaemon(), gives_back, math.inf
        self.link = SimpleNamespace(granted_at=granted_at, awaits_domain=awaits_domain)

    async def run(self, task_status=trio.TASK_STATUS_IGNORED):
        shared = Conversations(None, None, None, None, None, None)
        async with self.gate.turn(waiter(OWN)) as right:
            if self.gives_back:
                right.give_back()
            began = trio.current_time()
            task_status.started()
            await shared._until_overdue(SimpleNamespace(link=self.link), SimpleNamespace(control=self.control), right, PATIENCE)
            self.overdue_at = trio.current_time() - began

    async def wait(self, entrant):
        async with self.gate.turn(entrant):
            pass

    async def of(self, *waiters, seconds=3600.0):
        """Return when it is overdue, with these in the queue from the beginning."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.run)
            for each in waiters:
                nursery.start_soon(self.wait, each)
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()
        return self.overdue_at


@pytest.mark.parametrize(
    ("waiters", "overdue_at"),
    [
        ([], math.inf),
        ([waiter(OTHER)], TIME),
        ([Entrant("command")], TIME),
        ([waiter(OWN)], LONG),
        ([waiter(OWN), waiter(OTHER)], TIME),
    ],
    ids=["nobody", "another user", "mpsd", "its own user", "another user behind its own"],
)
async def test_a_client_has_its_time_and_more_where_no_other_user_waits(autojump_clock, waiters, overdue_at):
    assert await Stay().of(*waiters) == pytest.approx(overdue_at)


@pytest.mark.parametrize(
    ("waiters", "overdue_at"),
    [([waiter(OTHER)], math.inf), ([waiter(OTHER, object())], TIME), ([waiter(OWN, object()), waiter(OTHER)], TIME)],
    ids=["who shares the window", "who wants it alone", "who waits behind a client that wants it alone"],
)
async def test_who_lets_others_send_keeps_only_those_out_that_want_another_window(autojump_clock, waiters, overdue_at):
    assert await Stay(gives_back=True).of(*waiters) == pytest.approx(overdue_at)


async def test_who_had_its_time_leaves_as_soon_as_another_user_comes(autojump_clock):
    stay = Stay()
    async with trio.open_nursery() as nursery:
        await nursery.start(stay.run)
        await trio.sleep(100)
        assert stay.overdue_at == math.inf
        await stay.wait(waiter(OTHER))
    assert stay.overdue_at == pytest.approx(100)


async def test_who_gives_up_waiting_does_not_make_a_client_leave(autojump_clock):
    stay = Stay()
    async with trio.open_nursery() as nursery:
        await nursery.start(stay.run)
        with trio.move_on_after(TIME - 1):
            await stay.wait(waiter(OTHER))
        await trio.sleep(100)
        assert stay.overdue_at == math.inf
        nursery.cancel_scope.cancel()


async def test_the_time_begins_anew_with_the_channel(autojump_clock):
    """A server that started slowly would take the time in which its client has to finish."""
    granted_at = trio.current_time() + TIME - 0.01
    assert await Stay(granted_at).of(waiter(OTHER)) == pytest.approx(2 * TIME - 0.01)


async def test_a_client_is_not_blamed_for_a_domain_that_answers_nobody(autojump_clock):
    stay = Stay(awaits_domain=True)
    stay.control.is_answering = False
    async with trio.open_nursery() as nursery:
        await nursery.start(stay.run)
        nursery.start_soon(stay.wait, waiter(OTHER))
        await trio.sleep(100)
        assert stay.overdue_at == math.inf
        stay.control.is_answering = True
    assert 100 <= stay.overdue_at <= 100 + TIME + 2


async def test_a_client_with_a_channel_silences_a_domain_for_no_longer_than_one_may_be_silent(autojump_clock):
    """A daemon waits for the rest of what a client sent: the clients of others waited for as long as that one liked."""
    stay = Stay(granted_at=0.0, awaits_domain=True)
    stay.control.is_answering = False
    assert TIME + 15.0 <= await stay.of(waiter(OTHER)) <= TIME + 15.0 + TIME + 2


@pytest.mark.parametrize("is_well_without_it", [False, True])
async def test_who_silenced_a_domain_shows_once_the_client_has_left(autojump_clock, is_well_without_it):
    async def hold(caller, domain, why):
        held.append(why)

    held = []
    shared = Conversations(HopefulPool(), None, None, RelaySettings(1, PATIENCE, 1, False), None, SimpleNamespace(hold=hold))
    domain = shared.pool.domain
    domain.control, domain.guard.is_on = VendorDaemon(), True
    domain.control.is_answering = False
    link = SimpleNamespace(run=wait_for_ever, granted_at=0.0, is_granted=True, awaits_domain=True, transcript=None)
    caller = SimpleNamespace(link=link, process=ProcessId(1, 0), credentials=Credentials(1, OWN, OWN))
    async with trio.open_nursery() as nursery:
        async with domain.guard.window(waiter(OWN), domain.control) as right:
            nursery.start_soon(Stay.wait, SimpleNamespace(gate=domain.guard._gate), waiter(OTHER))
            assert await shared._link(caller, domain, None, right) is LinkSide.OVERDUE_CLIENT
            assert not shared.offences.of(caller.process, OWN)
    domain.control.is_answering = is_well_without_it
    assert await shared._detach(caller, domain, LinkSide.OVERDUE_CLIENT)
    assert (len(held), bool(shared.offences.of(caller.process, OWN))) == (1, is_well_without_it)


class UnconnectedConversations(Conversations):
    async def _speak(self, caller, domain, right):
        return await self._link(caller, domain, None, right)


async def waits(seconds, times, arriving=None, silences=False, offences=None):
    """Return how long each connection of OTHER waits while clients of OWN stay for so long, one after the other.

    arriving: so long they take then until they have arrived.  silences: mpsd has taken the domain for silent by their end.
    """

    async def stay(*args):
        await trio.sleep(seconds)
        if silences:
            domain.silenced.set()
            return LinkSide.DOMAIN
        if arriving is not None:
            nursery.start_soon(arrive)
        return LinkSide.CLIENT

    async def arrive():
        await trio.sleep(arriving)
        domain.guard.hear(1)

    async def keep_coming():
        while True:
            await shared._visit(caller, domain, unlimited(()))
            domain.silenced = trio.Event()  # it was started again

    settings = RelaySettings(1, PATIENCE, 1, False)
    offences = offences or Offences(lambda uid: uid)
    shared = UnconnectedConversations(HopefulPool(), None, None, settings, None, None, offences)
    link = SimpleNamespace(
        run=stay, share=OWN, granted_at=-math.inf, awaits_domain=False, transcript=None,
        has_passed_descriptors=arriving is not None, pass_on=lambda end: None,
    )  # fmt: skip
    caller = SimpleNamespace(link=link, process=None, credentials=Credentials(1, OWN, OWN))
    domain, found = shared.pool.domain, []
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(keep_coming)
        for _ in range(times):
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            async with domain.guard.window(waiter(OTHER, object()), domain.control):
                found.append(trio.current_time() - began)
        nursery.cancel_scope.cancel()
    return found


async def test_who_leaves_just_before_the_time_is_over_delays_others_twice_a_minute(autojump_clock):
    """Each connection of another user waited for as long as one may stay."""
    found = await waits(TIME - 0.1, 10)
    assert found == pytest.approx([TIME - 0.1] * 2 + [PATIENCE] * 8)


async def test_who_stays_for_no_longer_than_an_offender_may_commits_no_offence(autojump_clock):
    """A user who starts many clients at once would come last, and would have no time on a slow machine."""
    found = await waits(PATIENCE - 0.01, 100)
    assert found == [pytest.approx(PATIENCE - 0.01)] * 100


async def test_an_arrival_that_a_busy_machine_delays_is_no_offence(autojump_clock):
    """A job of many ranks was an offender after the sixth, came last and had a tenth of the time."""
    offences = Offences(lambda uid: uid)
    found = await waits(PATIENCE - 0.01, 20, arriving=1.5, offences=offences)
    assert found == [pytest.approx(PATIENCE - 0.01 + 1.5)] * 20
    assert not offences.is_remembered(OWN)


async def test_who_arrives_just_before_the_time_is_over_delays_others_so_long_twice_a_minute(autojump_clock):
    found = await waits(PATIENCE - 0.01, 10, arriving=TIME - 0.1)
    assert found[:2] == [pytest.approx(PATIENCE + TIME - 0.11)] * 2
    assert max(found[3:]) <= PATIENCE + 2.01


async def test_a_domain_that_falls_silent_is_no_offence_of_the_clients_inside(autojump_clock):
    """Another user silenced it twice in a minute: then each user with a client inside had a tenth of the time."""
    assert await waits(TIME - 0.1, 5, silences=True) == [pytest.approx(TIME - 0.1)] * 5


async def stay_together(offences, stays):
    """Have clients of OWN stay so long inside together, while one of OTHER waits for their end."""
    settings = RelaySettings(1, PATIENCE, 1, False)
    shared = UnconnectedConversations(HopefulPool(), None, None, settings, None, None, offences)
    domain = shared.pool.domain
    domain.control = VendorDaemon()

    def caller(seconds):
        async def stay(backend, patience, is_well):
            await is_well()  # lets the next one send
            await trio.sleep_until(began + seconds)
            return LinkSide.CLIENT

        link = SimpleNamespace(
            run=stay, share=OWN, granted_at=-math.inf, awaits_domain=False, transcript=None, has_passed_descriptors=False
        )
        return SimpleNamespace(link=link, process=None, credentials=Credentials(1, OWN, OWN))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for seconds in stays:
            nursery.start_soon(shared._visit, caller(seconds), domain, unlimited(()))
        await trio.testing.wait_all_tasks_blocked()
        async with domain.guard.window(waiter(OTHER, object()), domain.control):
            assert trio.current_time() - began == pytest.approx(max(stays))


async def test_the_time_in_which_clients_of_one_user_are_inside_together_counts_once(autojump_clock):
    """A user who started many at once was an offender after a second, for instance the one of a server's start."""
    offences = Offences(lambda uid: uid)
    await stay_together(offences, [4 * PATIENCE] * 16)
    assert not offences.is_remembered(OWN)


async def test_who_leaves_one_after_the_other_keeps_others_out_all_the_time(autojump_clock):
    offences = Offences(lambda uid: uid)
    staggered = [PATIENCE * number for number in range(1, 10)]
    await stay_together(offences, staggered)
    assert not offences.is_remembered(OWN)
    await stay_together(offences, staggered)
    assert offences.is_remembered(OWN)


async def test_the_time_a_domain_takes_to_set_limits_is_no_offence_of_the_client(autojump_clock, monkeypatch):
    """Where a server starts, or the daemon is busy, clients that did nothing wrong lost their patience, and some were held."""

    async def set_slowly(*args):
        await trio.sleep(TIME - 2 * PATIENCE)

    monkeypatch.setattr("mpsd.relay.conversation.enforce", set_slowly)
    assert await waits(2 * PATIENCE, 6) == [pytest.approx(TIME)] * 6


async def test_how_long_a_client_keeps_others_out_begins_as_one_comes(autojump_clock):
    gate = HandshakeGate()
    async with trio.open_nursery() as nursery, gate.turn(waiter(OWN)) as right:
        nursery.start_soon(Stay.wait, SimpleNamespace(gate=gate), waiter(OWN, object()))
        await trio.sleep(100)
        assert right.kept_out_seconds() == 0
        with trio.move_on_after(TIME):
            await Stay.wait(SimpleNamespace(gate=gate), waiter(OTHER, object()))
        await trio.sleep(100)
        assert right.kept_out_seconds() == pytest.approx(TIME)


async def wait_for_ever(*args):
    await trio.sleep_forever()


async def test_a_client_that_ends_as_another_comes_is_not_overdue(autojump_clock):
    """It was blamed, and one with a channel held although its domain had ended the connection."""
    shared = Conversations(HopefulPool(), None, None, RelaySettings(1, PATIENCE, 1, False), None, None)
    domain = shared.pool.domain
    domain.control = VendorDaemon()

    async def run(backend, patience, is_well):
        await has_ended.wait()
        return LinkSide.DOMAIN

    async def come_or_end(is_end):
        await trio.sleep(2 * TIME)
        if is_end:
            has_ended.set()
        else:
            async with domain.guard.window(waiter(OTHER), domain.control):
                pass

    link = SimpleNamespace(run=run, granted_at=-math.inf, awaits_domain=False, transcript=None)
    caller = SimpleNamespace(link=link, process=None, credentials=Credentials(1, OWN, OWN))
    for _ in range(30):  # trio wakes tasks of one moment in a random order
        has_ended = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(come_or_end, False)
            nursery.start_soon(come_or_end, True)
            async with domain.guard.window(waiter(OWN), domain.control) as right:
                assert await shared._link(caller, domain, None, right) is LinkSide.DOMAIN

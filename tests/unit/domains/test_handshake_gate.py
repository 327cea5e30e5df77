"""The order in which clients are let into a domain, and who is inside together."""

import pytest
import trio
import trio.testing

from mpsd.domains.handshake_gate import Entrant, HandshakeGate

FREE = "no limits"
SECONDS = 1.0  # that each stays inside


def client(share=0, key=FREE, offences=0, is_late=lambda: False):
    return Entrant(key, share, True, offences, is_late)


def limited(share, is_late=lambda: False):
    return client(share, object(), is_late=is_late)


class Visits:
    """Who was let in, in that order, and when."""

    def __init__(self):
        self.gate, self.names, self.at = HandshakeGate(), [], {}

    async def pay(self, name, entrant, stay=SECONDS, handshake=0.0):
        """Be inside for so long, and hold the pass for the first part of it."""
        async with self.gate.turn(entrant) as right:
            self.names.append(name)
            self.at[name] = trio.current_time()
            await trio.sleep(handshake)
            right.give_back()
            await trio.sleep(stay - handshake)

    async def come(self, nursery, *visits):
        """Let each come after the one before it waits, or is inside."""
        for name, entrant in visits:
            nursery.start_soon(self.pay, name, entrant)
            await trio.testing.wait_all_tasks_blocked()


async def test_of_one_user_those_with_fewer_offences_go_first(autojump_clock):
    visits = Visits()
    async with trio.open_nursery() as nursery:
        await visits.come(
            nursery, ("holder", limited(0)), ("slow", client(0, 1, 2)), ("first", client(0, 2)), ("second", client(0, 3)),
            ("slower", client(0, 4, 5)),
        )  # fmt: skip
    assert visits.names == ["holder", "first", "second", "slow", "slower"]


async def test_users_take_turns_however_many_connections_one_has(autojump_clock):
    """With sixty connections, one user kept another's client waiting for sixty windows."""
    visits = Visits()
    async with trio.open_nursery() as nursery:
        await visits.come(nursery, *((f"a{number}", limited(1)) for number in range(60)))
        began = trio.current_time()
        await visits.come(nursery, ("b0", limited(2)), ("b1", limited(2)), ("c0", limited(3)))
    assert visits.at["b0"] - began <= SECONDS
    assert visits.names[:7] == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


async def test_a_late_user_comes_after_all_others_and_not_after_itself(autojump_clock):
    """It becomes late while its connections wait, and may be alone."""
    visits, late = Visits(), set()

    def is_late(share):
        return lambda: share in late

    async with trio.open_nursery() as nursery:
        await visits.come(nursery, ("a0", limited(1)))
        await visits.come(nursery, *((f"{user}{number}", limited(share, is_late(share)))
                                     for share, user in ((1, "a"), (2, "b"), (3, "c")) for number in (1, 2)))  # fmt: skip
        late.add(1)
    assert visits.names == ["a0", "b1", "c1", "b2", "c2", "a1", "a2"]


async def test_who_is_late_no_longer_has_its_turn_back(autojump_clock):
    """A user who lately kept a domain waiting is not overtaken for ever, also by a stream of others."""
    visits, began = Visits(), trio.current_time()

    def is_late():
        return trio.current_time() - began < 60

    async def stream(share):
        for number in range(100):
            nursery.start_soon(visits.pay, f"{share}.{number}", limited(share))
            await trio.sleep(SECONDS / 2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream, 2)
        nursery.start_soon(stream, 3)
        await trio.sleep(3)
        nursery.start_soon(visits.pay, "late", limited(1, is_late))
    assert visits.at["late"] - began <= 60 + 3 * SECONDS


@pytest.mark.parametrize("waiter", [limited(1), client(1)], ids=["limited", "free"])
@pytest.mark.parametrize("others", ["free", "limited", "both"])
@pytest.mark.parametrize("users", [1, 3])
@pytest.mark.parametrize("handshake", [0.0, 0.1], ids=["quick", "slow"])
async def test_nobody_waits_for_ever_behind_a_stream(autojump_clock, waiter, others, users, handshake):
    """Those who come steadily share windows, or want each their own, or both; and the waiting client may be either."""
    visits, waiter = Visits(), Entrant(waiter.key, 1, True)

    async def stream(share):
        for number in range(60):
            is_free = others == "free" or (others == "both" and number % 2)
            newcomer = client(share) if is_free else limited(share)
            nursery.start_soon(visits.pay, f"{share}.{number}", newcomer, SECONDS, handshake)
            await trio.sleep(SECONDS / 4)

    async with trio.open_nursery() as nursery:
        for share in range(2, 2 + users):
            nursery.start_soon(stream, share)
        await trio.sleep(5)
        came_at = trio.current_time()
        nursery.start_soon(visits.pay, "waiter", waiter)
    assert visits.at["waiter"] - came_at <= (1 + users) * (SECONDS + handshake)


async def test_who_shares_a_window_goes_in_one_after_the_other_and_stays_together(autojump_clock):
    visits = Visits()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(visits.pay, number, client(), SECONDS, 0.1)
    assert sorted(visits.at.values()) == pytest.approx([0.1 * number for number in range(5)])
    assert visits.gate.window == 1


async def test_nobody_joins_a_window_past_the_first_in_the_queue(autojump_clock):
    visits = Visits()
    async with trio.open_nursery() as nursery:
        await visits.come(nursery, ("free", client(1)), ("limited", limited(2)), ("also free", client(3)))
    assert visits.names == ["free", "limited", "also free"]
    assert visits.gate.window == 3


async def test_where_the_first_in_the_queue_gives_up_the_others_join_at_once(autojump_clock):
    visits = Visits()
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(give_up, visits, "free", client(1), 10 * SECONDS)
        limited_scope = await nursery.start(give_up, visits, "limited", limited(2))
        await visits.come(nursery, ("also free", client(3)))
        assert visits.names == ["free"]
        limited_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert visits.names == ["free", "also free"]
        scope.cancel()


async def give_up(visits, name, entrant, stay=SECONDS, task_status=trio.TASK_STATUS_IGNORED):
    with trio.CancelScope() as scope:
        task_status.started(scope)
        await visits.pay(name, entrant, stay)


async def test_what_is_no_client_needs_no_pass(autojump_clock):
    visits = Visits()
    async with trio.open_nursery() as nursery, visits.gate.turn(client(1, "adopted")):
        await visits.come(nursery, ("of an earlier mpsd", Entrant("adopted")), ("client", client(2, "adopted")))
        assert visits.names == ["of an earlier mpsd"]


async def test_a_pass_comes_back_once():
    gate = HandshakeGate()
    async with gate.turn(client()) as right:
        right.give_back()
        async with gate.turn(client()) as second:
            right.give_back()  # not its own any more
            with trio.move_on_after(0) as waiting:
                await gate._enter(client())
            assert waiting.cancelled_caught
            second.give_back()
    async with gate.turn(client()):
        pass


async def test_whoever_leaves_the_queue_takes_nobody_s_turn(autojump_clock):
    """It gives up at the moment at which it is let in."""
    visits = Visits()
    async with trio.open_nursery() as nursery:
        async with visits.gate.turn(limited(1)):
            waiting = await nursery.start(give_up, visits, "waiting", limited(1))
            await visits.come(nursery, ("next", client(1, offences=1)))
            waiting.cancel()
    assert visits.names == ["next"]
    assert visits.gate.inside == 0

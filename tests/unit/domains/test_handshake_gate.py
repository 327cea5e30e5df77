"""The clients that may talk to a vendor daemon, and their order."""

import trio
import trio.testing

from mpsd.domains.handshake_gate import HandshakeGate


async def test_one_at_a_time_the_patient_first():
    gate = HandshakeGate()
    order = []

    async def speak(name, offences):
        async with gate.turn(offences):
            order.append(name)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        async with gate.turn(0):
            for name, offences in (("slow", 2), ("first", 0), ("second", 0), ("slower", 5)):
                nursery.start_soon(speak, name, offences)
                await trio.testing.wait_all_tasks_blocked()
            assert order == []
    assert order == ["first", "second", "slow", "slower"]


async def test_a_pass_comes_back_once():
    gate = HandshakeGate()
    async with gate.turn(0) as right:
        right.give_back()
        async with gate.turn(0) as second:
            right.give_back()  # not his any more
            with trio.move_on_after(0) as waiting:
                await gate._acquire(0)
            assert waiting.cancelled_caught
            second.give_back()
    async with gate.turn(0):
        pass


async def test_whoever_leaves_the_queue_takes_nobody_s_turn():
    gate = HandshakeGate()
    got = trio.Event()

    async def wait_for_it():
        async with gate.turn(1):
            got.set()

    async with trio.open_nursery() as nursery:
        async with gate.turn(0):
            with trio.CancelScope() as scope:
                nursery.start_soon(wait_for_it)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                await gate._acquire(0)
        with trio.fail_after(5):
            await got.wait()

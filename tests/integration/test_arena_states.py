"""The forward state that a real daemon keeps with an arena, over its socket."""

import os

import pytest
from mpsd_client import Client, Refused, State, StateReader, calls, values

from mpsd.model.arena import GRANULE
from tests.integration.machine import Machine

pytestmark = [pytest.mark.root, pytest.mark.slow]


def step_of(mpsd: Client, arena: values.Arena) -> tuple[int, int, object]:
    """Its serial, its generation, and the step that was published last."""
    found = mpsd.ask(calls.arena_state(arena.id))
    assert found.fd is not None
    with StateReader.open(found.fd, generation=found.generation) as reader:
        record = reader.read()
    os.close(found.fd)
    return found.state_serial, found.generation, None if record is None else record["step"]


def test_it_outlives_an_mpsd_that_is_killed(machine: Machine) -> None:
    machine.start()
    with State.create({"step": "uint64"}, generation=1) as state:
        with machine.mpsd() as mpsd:
            mpsd.ask(calls.arena_create("kv", "0", 16 * GRANULE))
            mine = mpsd.ask(calls.arena_open("kv", "write"))
            assert mpsd.ask(calls.arena_state(mine.id)).fd is None
            with pytest.raises(Refused, match="neither a GPU's nor a memory file"), open("/dev/null") as none:
                mpsd.ask(calls.arena_keep_state(mine.id, mine.generation, none.fileno()))
            serial = mpsd.ask(calls.arena_keep_state(mine.id, mine.generation, state.fd)).state_serial
            state.publish(step=7)
            assert step_of(mpsd, mine) == (serial, 1, 7)
            machine.kill_daemon()
        state.publish(step=8)
        machine.start()
        with machine.mpsd() as mpsd:
            assert step_of(mpsd, mine) == (serial, 1, 8)
            again = mpsd.ask(calls.arena_keep_state(mine.id, mine.generation, state.fd)).state_serial
            assert again > serial
            mpsd.ask(calls.arena_close(mine.id))
            mpsd.ask(calls.arena_remove("kv"))
            keeper = mpsd.ask(calls.status()).keeper
            assert keeper is not None
            assert keeper.descriptors == 0

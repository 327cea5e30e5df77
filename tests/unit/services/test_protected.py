"""Whether a standby is ready to take over, for sources that then look for faults more often."""

import pytest

from mpsd.model.service import Order
from mpsd.services import coordinator


@pytest.fixture
def told(machine) -> list[bool]:
    """Return the reported values, where they changed."""
    return []


def follow(machine, told: list[bool]) -> None:
    def note(is_any: bool) -> None:
        if told[-1:] != [is_any]:
            told.append(is_any)

    machine.coordinator.protected.subscribe(note)


async def test_a_standby_that_is_ready_protects_until_it_has_taken_over(machine, told, autojump_clock):
    async with machine.mpsd():
        follow(machine, told)
        active = await machine.serves("a")
        late = await machine.member("b", is_ready=False)
        assert told == [False]
        machine.failover.ready(1, late)
        assert told == [False, True]
        machine.tear_down("a")
        machine.xid(43, "a")
        assert machine.order(late) == Order.SERVE
        assert told == [False, True, False]
        await machine.die(active)
        machine.serving(late)
        await machine.member("c")
        assert told[-1]


async def test_while_one_is_fenced_the_next_fault_that_proves_it_is_waited_for(machine, told, autojump_clock):
    async with machine.mpsd():
        follow(machine, told)
        active = await machine.serves("a")
        await machine.member("b")
        machine.failover.failed(1, active, "it cannot go on")
        assert machine.phase == "fencing"
        assert told == [False, True]


async def test_a_standby_that_ends_or_shares_the_domain_protects_from_no_fault(machine, told, autojump_clock):
    async with machine.mpsd():
        follow(machine, told)
        await machine.serves("a")
        beside = await machine.member("a")
        assert told == [False]
        apart = await machine.member("b")
        assert told == [False, True]
        await machine.die(apart)
        assert told == [False, True, False]
        await machine.die(beside)
        assert told == [False, True, False]


async def test_where_there_is_no_service_nobody_is_protected(machine, told, autojump_clock):
    async with machine.mpsd():
        follow(machine, told)
        active = await machine.serves("a")
        await machine.member("b")
        assert told == [False, True]
        machine.coordinator.heard_of("removed", machine.vault.made[1])
        assert told == [False, True, False]
        assert not machine.coordinator.records
        assert active in machine.processes


async def test_a_change_of_one_of_many_looks_at_that_one_alone(machine, told, autojump_clock, monkeypatch):
    """A user's process can be a member of hundreds of services, and let all of them change each second."""
    async with machine.mpsd():
        names = [f"s{number}" for number in range(50)]
        arenas, process = [machine.vault.create(name) for name in names], machine.process("a")
        for arena in arenas:
            machine.vault.open(process, arena.id)
            await machine.failover.join(arena.id, process, 0, 0.0)
        looked_at, is_protected = [], coordinator.is_protected

        def look(record: object) -> bool:
            looked_at.append(record)
            return is_protected(record)

        monkeypatch.setattr(coordinator, "is_protected", look)
        for arena in arenas:
            machine.coordinator.show(machine.coordinator.records[arena.id])
        assert len(looked_at) == len(arenas)


async def test_the_list_of_services_looks_at_no_list_of_arenas(machine, told, autojump_clock, monkeypatch):
    """Each user may ask for it, again and again."""
    async with machine.mpsd():
        for number in range(50):
            arena = machine.vault.create(f"s{number}")
            machine.coordinator.record(arena.id)
        lists, arenas = [], machine.vault.arenas
        monkeypatch.setattr(machine.vault, "arenas", lambda: lists.append(1) or arenas())
        assert len(machine.failover.services()) == 50
        assert lists == []

"""Where the other members of a process's service are, by what the registry knows of enlisted processes."""

from collections.abc import Collection

from mpsd.errors import NoSuchArena
from mpsd.model.arena import Arena
from mpsd.model.process import ProcessId
from mpsd.services.registry import ServiceRegistry
from mpsd.services.store import EnlistmentPlan

UID = 1000
FIRST, SECOND, THIRD, OTHER = (ProcessId(pid, 1) for pid in range(1, 5))


def no_arena(name: str) -> Arena:
    raise NoSuchArena(f"there is no arena {name}")


class Asked:
    """Knows where processes are, and what it was asked."""

    def __init__(self) -> None:
        self.of: list[set[ProcessId]] = []

    def __call__(self, processes: Collection[ProcessId]) -> set[str]:
        self.of.append(set(processes))
        return {f"d{each.pid}" for each in processes}


def test_it_is_asked_once_for_all_others_of_the_service():
    registry, asked = ServiceRegistry(no_arena), Asked()
    for process in (FIRST, SECOND, THIRD):
        registry.plan(process, EnlistmentPlan("llm", UID, UID))
    registry.plan(OTHER, EnlistmentPlan("dit", UID, UID))
    assert registry.domains_of_others(FIRST, asked) == {"d2", "d3"}
    assert asked.of == [{SECOND, THIRD}]
    assert registry.domains_of_others(None, asked) == registry.domains_of_others(ProcessId(9, 1), asked) == set()


def test_who_enlists_for_another_service_leaves_the_first_one():
    registry, asked = ServiceRegistry(no_arena), Asked()
    for process in (FIRST, SECOND):
        registry.plan(process, EnlistmentPlan("llm", UID, UID, "sent"))
    assert registry.domains_of_others(FIRST, asked) == {"d2", "sent"}
    registry.plan(SECOND, EnlistmentPlan("dit", UID, UID))
    assert registry.domains_of_others(FIRST, asked) == set()
    assert (registry.service_of(SECOND), set(registry.enlisted("llm", UID))) == (("dit", UID), {FIRST})
    assert registry.forget(FIRST)
    assert not registry.forget(FIRST)
    assert not registry.enlisted("llm", UID)
    assert set(registry.plans) == {SECOND}

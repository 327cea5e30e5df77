"""Which clients that wait for a fault domain are a sign of a sick machine."""

from mpsd.domains.placement_waits import PlacementWaits, Reason
from mpsd.domains.rules.placement import Wait
from mpsd.model.process import ProcessId

FIRST, SECOND = ProcessId(1, 1), ProcessId(2, 1)


def found(waits: PlacementWaits) -> tuple[int, ProcessId | None]:
    count, longest = waits.because_of_the_machine()
    return count, longest and longest.process


def test_a_wait_of_a_users_own_doing_is_no_sign_of_a_sick_machine() -> None:
    waits, first, second = PlacementWaits(), Reason(), Reason()
    with waits.begin(FIRST, 1000), waits.begin(SECOND, 1001):
        waits.explain(FIRST, first), waits.explain(SECOND, second)
        assert waits.because_of_the_machine() == (0, None)
        first.change(Wait("its user has fault domains", is_own=True))
        second.change(Wait("all domains are drained", is_own=False))
        assert found(waits) == (1, SECOND)
        assert [wait.process for wait in waits.listed()] == [FIRST, SECOND]
        first.change(Wait("all domains are drained", is_own=False))
        assert found(waits) == (2, SECOND)
        second.change(Wait("its user has fault domains", is_own=True))
        assert found(waits) == (1, FIRST)
    assert waits.because_of_the_machine() == (0, None)


def test_the_time_of_a_users_own_doing_is_not_counted() -> None:
    waits, first = PlacementWaits(), Reason()
    with waits.begin(FIRST, 1000):
        waits.explain(FIRST, first)
        first.change(Wait("its user has fault domains", is_own=True))
        [wait] = waits.listed()
        wait.since -= 3600.0
        first.change(Wait("all domains are drained", is_own=False))
        assert wait.waited_seconds > 3600.0
        assert wait.machine_seconds < 600.0

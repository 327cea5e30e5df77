"""Blame where a user has many cases."""

from msgspec.structs import replace

from mpsd.faults.rules.blame import MOST_CASES, Blame
from mpsd.model.fault import Party
from mpsd.model.process import ProcessId
from tests.unit.faults.rules.test_blame import SETTINGS, incident, suspected


def test_a_user_with_many_cases_closes_none_of_another_user() -> None:
    """64 of them did, and suspects that faulted in turns met again in one domain."""
    blame = Blame(SETTINGS)
    blame.take(incident(1, "ab"), 0.0)
    for number in range(2, MOST_CASES + 10):
        processes = ProcessId(number, 1), ProcessId(number, 2)
        parties = tuple(Party(process, 7, f"p{process.pid}.{process.start_time}") for process in processes)
        blame.take(replace(incident(number, ""), suspects=processes, parties=parties), 0.0)
    assert suspected(blame) >= {"a", "b"}
    assert len(blame.state.cases) == MOST_CASES
    assert blame.state.cases[-1].number == MOST_CASES + 9

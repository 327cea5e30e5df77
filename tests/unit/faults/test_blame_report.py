"""The cases against clients, as an operator sees them."""

import pytest

from mpsd.domains.pool import Drained
from mpsd.faults.blame_report import standings, status_of
from mpsd.faults.rules.blame import Blame
from mpsd.faults.rules.blame_state import BlameState, Conviction, CrashRecord, SuspectSet
from mpsd.faults.rules.settings import FaultSettings
from mpsd.model.blame import BlameKind, BlameStatus

CASE = SuspectSet(3, 5, 1, 2, (("a", "b"), (), ("c",)), 2000.0, 900.0)
NOW = 1000.0
ROWS = [
    pytest.param(BlameState(), {}, [], id="nothing"),
    pytest.param(
        BlameState((CASE,)),
        {},
        [
            BlameStatus("a", BlameKind.SUSPECTED, 900.0, 2000.0, 2, 3, 0),
            BlameStatus("b", BlameKind.SUSPECTED, 900.0, 2000.0, 2, 3, 0),
            BlameStatus("c", BlameKind.SUSPECTED, 900.0, 2000.0, 2, 3, 2),
        ],
        id="suspects, with the number of their group",
    ),
    pytest.param(
        BlameState((), (Conviction("x", 9, 2, 3000.0, 4000.0),), (CrashRecord("x", ((8, 950.0), (9, 990.0))),)),
        {},
        [BlameStatus("x", BlameKind.CONVICTED, 990.0, 3000.0, 2, 9)],
        id="convicted, since its last fault",
    ),
    pytest.param(BlameState((), (Conviction("x", 9, 1, 999.0, 4000.0),)), {}, [], id="its time is over"),
    pytest.param(BlameState((), (Conviction("x", 9, 1, 3000.0, 4000.0, True),)), {}, [], id="released"),
    pytest.param(
        BlameState((), (), (CrashRecord("x", ((1, 998.0), (2, 999.0), (3, 999.5))),)),
        {},
        [BlameStatus("x", BlameKind.PAUSED, 999.5, 1000.5, 3)],
        id="it has to wait",
    ),
    pytest.param(BlameState((), (), (CrashRecord("x", ((1, 999.0), (2, 999.5))),)), {}, [], id="two faults: it need not"),
    pytest.param(
        BlameState(), {"GPU-a": Drained("Xid 79", 950.0)}, [BlameStatus("GPU-a", BlameKind.DRAINED, 950.0)], id="a GPU"
    ),
]


@pytest.mark.parametrize(("state", "drained", "shown"), ROWS)
def test_what_is_held_against_whom(state, drained, shown):
    assert list(standings(Blame(FaultSettings(), state), drained, NOW)) == shown


@pytest.mark.parametrize(
    ("key", "is_held"),
    [("lease:7:1000", True), ("lease:7", True), ("lease:7:", False), ("lease:7:10", False), ("lease:", False), ("", False)],
)
def test_a_lease_stands_for_all_its_users(key: str, is_held: bool) -> None:
    held = [BlameStatus("lease:77:1000", BlameKind.PAUSED, NOW), BlameStatus("lease:7:1000", BlameKind.CONVICTED, NOW)]
    assert status_of(key, held) == (BlameStatus(key, BlameKind.CONVICTED, NOW) if is_held else None)

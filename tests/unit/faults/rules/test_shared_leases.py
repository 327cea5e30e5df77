"""Blame of the users of one lease: an operator's lease can serve several."""

from mpsd.faults.rules.blame import Blame
from mpsd.faults.rules.blame_state import Cleared, Released
from mpsd.model.fault import Incident, Party
from mpsd.model.process import ProcessId
from tests.unit.faults.rules.test_blame import SETTINGS, incident, proven


def user_of(lease: int, uid: int, pid: int = 1) -> Party:
    return Party(ProcessId(pid, 1), uid, "a", lease_id=lease)


def of_lease(number: int, uid: int) -> Incident:
    party = user_of(7, uid)
    return proven(number, "a", culprit=party.process, parties=(party,))


def test_a_user_of_a_shared_lease_harms_no_other_user_of_it():
    """A client can forge its own core dump, and an operator's lease serves any user."""
    blame = Blame(SETTINGS)
    for number in range(1, 6):
        blame.take(of_lease(number, 1000), 0.0)
    for uid, pause, place in ((1000, 4.0, "quarantine:lease:7:1000"), (2000, 0.0, "")):
        party = user_of(7, uid)
        assert (blame.pause(party.key, 0.0), blame.placement(party.key, 0.0, party.wider_keys)) == (pause, place)


def test_a_pardon_of_a_lease_pardons_all_its_users_and_no_other_lease():
    blame = Blame(SETTINGS)
    for number, uid in enumerate((1000, 2000), 1):
        blame.take(of_lease(number, uid), 0.0)
    suspects = (user_of(7, 3000), user_of(77, 3000, 2))
    blame.take(incident(3, "ab", suspects=tuple(each.process for each in suspects), parties=suspects), 0.0)
    assert blame.pardon("lease:7") == (
        Released("lease:7:1000", "pardoned"),
        Released("lease:7:2000", "pardoned"),
        Cleared(3, ("lease:7:3000",), "pardoned"),
    )
    assert (blame.state.convictions, blame.state.records) == ((), ())
    assert [case.keys for case in blame.state.cases] == [{"lease:77:3000"}]

"""The current and the recent clients of each domain."""

import pytest

from mpsd.faults.known_clients import KnownClients
from mpsd.model.fault import Party
from mpsd.model.process import ProcessId

A, B, C = (ProcessId(pid, 7) for pid in (101, 102, 103))
SECOND = 10**9


class Clock:
    """Stands still until the test moves it."""

    ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.ns

    def go(self, seconds: float) -> None:
        self.ns += int(seconds * SECOND)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def parties(clock):
    return KnownClients(lambda process: Party(process, 1000, f"p{process.pid}"), clock)


def test_whoever_is_met_is_described_once_while_it_lives(clock):
    asked = []
    parties = KnownClients(lambda process: asked.append(process) or Party(process, 0, "x"), clock)
    assert [parties.meet(A, "d"), parties.meet(A, "d"), parties.meet(A, "e")] == [True, False, False]
    assert asked == [A]
    assert parties.find(A).program == "x"
    assert (parties.find(B), parties.find(None)) == (None, None)


def test_who_was_there(parties, clock):
    """The caller supplies the current clients; the recorded ones are those that left within the time asked for."""
    for process, domain in ((A, "d"), (B, "d"), (C, "e")):
        parties.meet(process, domain)
        parties.leave(process)
    clock.go(5)
    assert parties.present("d", [C], 6) == (A, B, C)
    assert parties.present("d", [], 4.9) == ()
    assert parties.present("e", [], 6) == (C,)


def test_who_went_before_fresh_servers_was_not_there(parties, clock):
    for process in (A, B):
        parties.meet(process, "d")
    parties.leave(A)
    parties.renew("d")
    parties.renew("e")
    parties.leave(B)
    assert parties.present("d", [], 6) == (B,)
    assert (parties.domain_of(A), parties.domain_of(B), parties.domain_of(C)) == ("", "d", "")


def test_one_leaves_once(parties):
    assert parties.leave(A) is None
    parties.meet(A, "d")
    assert (parties.is_gone(A), parties.leave(A), parties.leave(A), parties.is_gone(A)) == (False, "d", None, True)
    assert not parties.is_gone(B)


@pytest.mark.parametrize(("seconds", "former"), [(0.0, "d"), (1.9, "d"), (2.0, "")])
def test_where_one_was_a_moment_ago(parties, clock, seconds, former):
    parties.meet(A, "d")
    assert parties.former_domain(101) == ""
    clock.go(100)
    parties.meet(A, "e")
    clock.go(seconds)
    parties.meet(A, "e")  # a further connection is not a move
    assert parties.former_domain(101) == former
    assert parties.former_domain(999) == ""
    assert parties.domain_of(A) == "e"


def test_a_pid_is_of_the_process_that_was_met_last(parties):
    later = ProcessId(101, 8)
    assert parties.by_pid(101) is None
    parties.meet(A, "d")
    parties.leave(A)
    assert parties.by_pid(101) == A
    parties.meet(later, "d")
    assert parties.by_pid(101) == later


def test_clients_of_a_user(parties):
    parties.meet(A, "d")
    parties.meet(B, "d")
    parties.leave(A)
    assert (list(parties.of_user(1000)), list(parties.of_user(0))) == ([A, B], [])


def test_who_has_gone_is_known_for_a_minute(parties, clock):
    """A core dump comes seconds later. The process that has the pid by then stays known."""
    parties.meet(A, "d")
    parties.leave(A)
    parties.meet(ProcessId(101, 8), "d")
    parties.meet(B, "d")
    clock.go(59)
    parties.leave(B)
    assert parties.find(A) is not None
    clock.go(2)
    parties.meet(C, "d")
    parties.leave(C)
    assert parties.find(A) is None
    assert parties.find(B) is not None
    assert parties.by_pid(101) == ProcessId(101, 8)


def test_those_who_have_gone_are_bounded(parties):
    """However fast they come and go; current clients are not forgotten because of them."""
    parties.meet(A, "d")
    for pid in range(1000, 6000):
        parties.meet(ProcessId(pid, 7), "d")
        parties.leave(ProcessId(pid, 7))
    assert len(parties.present("d", [], 60)) == 4096
    assert parties.find(A) is not None
    assert (parties.by_pid(1000), parties.find(ProcessId(1000, 7))) == (None, None)
    assert len(parties._by_pid) == 4097


OWNERS = {A.pid: Party(A, 1000, "x"), B.pid: Party(B, 1001, "x"), C.pid: Party(C, 1000, "x", "pod-1", lasting="pod:1")}


@pytest.mark.parametrize(
    ("others", "servers", "have_one"),
    [
        pytest.param([], [1], True, id="one client"),
        pytest.param([ProcessId(104, 7)], [1], True, id="two of one user"),
        pytest.param([B], [1], False, id="another user's has ended"),
        pytest.param([C], [1], False, id="or that of another container"),
        pytest.param([B], [1, 2], False, id="one of the servers is the same"),
        pytest.param([B], [], False, id="no other server is known yet"),
        pytest.param([B], [2], True, id="with the servers of before"),
    ],
)
def test_whether_all_whom_the_servers_have_served_are_of_one_user(clock, others, servers, have_one):
    """However long ago: work of a client that has ended can go on."""
    parties = KnownClients(lambda process: OWNERS.get(process.pid, Party(process, 1000, "x")), clock)
    parties.note_servers("d", [1], (), clock)
    for each in others:
        parties.meet(each, "d")
        parties.serve(each, "d")
        parties.leave(each)
    parties.meet(B, "d")  # it only connects
    parties.part(B)
    clock.go(3600)
    parties.meet(A, "d")
    parties.serve(A, "d")
    parties.note_servers("d", servers, (), clock)
    assert parties.have_one_owner("d") is have_one
    assert parties.have_one_owner("e")
    parties.renew("d")
    assert parties.have_one_owner("d")


def test_who_is_there_counts_for_new_servers_too(clock):
    parties = KnownClients(lambda process: OWNERS[process.pid], clock)
    for each in (A, B):
        parties.meet(each, "d")
    parties.renew("d", [A, B])
    parties.note_servers("d", [1], (), clock)
    assert parties.note_servers("d", [2], (A, B), clock) == clock()
    parties.note_servers("e", [3], (), clock)
    assert parties.note_servers("e", [4], (A,), clock) == clock()
    assert (parties.have_one_owner("d"), parties.have_one_owner("e")) == (False, True)


def test_who_ended_before_all_servers_were_started_was_not_there(clock):
    parties = KnownClients(lambda process: OWNERS[process.pid], clock)
    for each in (A, B):
        parties.meet(each, "d")
        parties.leave(each)
        clock.go(1)
    parties.note_servers("d", [1], (), clock)
    parties.note_servers("d", [2], (), lambda: clock() - 1_500_000_000)
    assert parties.present("d", (), 6.0) == (B,)


def test_the_domains_that_are_there_are_remembered(parties):
    """However many come and go: a user can have mpsd start domains, and so had it forget whom the first one has served."""
    parties = KnownClients(lambda process: OWNERS.get(process.pid, Party(process, 1000, "x")), lambda: 0)
    for each in (A, B):
        parties.meet(each, "d")
        parties.serve(each, "d")
    for number in range(1000):
        parties.meet(ProcessId(number, 7), f"d{number}")
        parties.renew(f"d{number}")
        parties.forget_domains_but({"d", f"d{number}"})
    assert not parties.have_one_owner("d")
    assert len(parties._histories) == 2


def test_whom_servers_of_before_mpsds_start_have_served_is_not_known(parties, clock):
    parties.note_servers("d", [1], (), clock)
    parties.meet(A, "d")
    parties.renew("d")
    parties.adopt("d")
    assert not parties.have_one_owner("d")
    parties.note_servers("d", [2], (), clock)
    assert parties.have_one_owner("d")

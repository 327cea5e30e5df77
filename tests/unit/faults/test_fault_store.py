"""The file that incidents and blame are in."""

import os

import pytest
from msgspec.structs import replace

from mpsd.errors import UnusablePath
from mpsd.faults.rules.blame_state import BlameState, Conviction, CrashRecord, SuspectSet
from mpsd.faults.rules.incident_json import incident_of, incident_text
from mpsd.faults.store import FaultStore
from mpsd.model.fault import Confidence, Deed, FaultClass, Incident, Observation, Party, Source
from mpsd.model.process import ProcessId

A, B, C = (ProcessId(pid, 7) for pid in (1, 2, 3))
SEEN = Observation(
    Source.CORE_DUMP, 10**18 + 1, FaultClass.SM, "GPU-a", "d2", A, True, False, 2**64 - 1, "write", "k«»<int>", 2**63, None,
    (A, B), "x", True,
)  # fmt: skip
PARTIES = (Party(A, 1000, "train \udcff", "docker:1", 7), Party(B), Party(C, 0, "serve"))
FULL = Incident(
    1, 3, 10**18, 1.8e9 + 0.123456, True, FaultClass.SM, "GPU-a", "d2", A, Confidence.PROVEN, (), (B, C), 2**64 - 1, "write",
    "k«»<int>", 0, (13, 43), (SEEN, Observation(Source.NVML, 5, xid=13)), (Deed(1, "terminate_client"),), PARTIES,
)  # fmt: skip
EMPTY = Incident(
    2, 1, 0, 0.0, False, FaultClass.UNKNOWN, "", "", None, Confidence.UNKNOWN, (), (), None, "", "", None, (), (),
)  # fmt: skip
STATE = BlameState(
    (SuspectSet(1, 2, 3, 4, (("a", "b"), (), ("c",)), 5.5, 1.25),),
    (Conviction("lease:7:1000", 1, 2, 3.25, 4.0), Conviction("x", 0, 1, 1.0, 2.0, True)),
    (CrashRecord("lease:7:1000", ((1, 0.5), (2, 1.5))), CrashRecord("y", ())),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "faults.db"


@pytest.mark.parametrize(
    "incident", [FULL, EMPTY, replace(FULL, confidence=Confidence.SUSPECTED, culprit=None, suspects=(A, B))]
)
def test_an_incident_is_the_same_after_it_was_text(incident):
    assert incident_of(incident_text(incident)) == incident


def test_what_was_written_is_there_for_the_next(path):
    """The first store was never closed: kill -9."""
    store = FaultStore(path)
    assert store.save_with_blame(FULL, STATE)
    assert store.save(EMPTY)
    again = FaultStore(path)
    assert list(again.incidents()) == [FULL, EMPTY]
    assert (again.incident(1), again.incident(2), again.incident(3)) == (FULL, EMPTY, None)
    assert again.unsettled() == [EMPTY]
    assert again.blame() == STATE


def test_the_newest_revision_is_kept(path):
    store = FaultStore(path)
    newer = replace(FULL, revision=4, deeds=())
    for each in (FULL, newer, FULL):
        assert store.save(each)
    assert list(store.incidents()) == [newer]


def test_incidents_in_both_directions(path):
    """More than are read at once, while others are written and removed."""
    store = FaultStore(path, kept=100)
    for number in range(1, 51):
        store.save(replace(EMPTY, number=number))
    assert numbers(store.incidents()) == [*range(1, 51)]
    assert numbers(store.incidents(47)) == [48, 49, 50]
    assert numbers(store.incidents_before()) == [*range(50, 0, -1)]
    assert numbers(store.incidents_before(4)) == [3, 2, 1]
    taken = []
    for each in store.incidents_before(40):
        taken.append(each.number)
        store.save(replace(EMPTY, number=max(50, 100 + each.number)))
    assert taken == [*range(39, taken[-1] - 1, -1)]


def test_no_more_are_read_than_are_taken(path):
    store, statements = FaultStore(path), []
    for number in range(1, 101):
        store.save(replace(EMPTY, number=number))
    store._db.set_trace_callback(statements.append)
    assert next(store.incidents_before()).number == 100
    assert len(statements) == 1


def numbers(incidents):
    return [each.number for each in incidents]


def test_only_the_last_are_kept_and_no_number_comes_again(path):
    store = FaultStore(path, kept=5)
    for number in range(1, 21):
        store.save(replace(EMPTY, number=number))
    assert numbers(store.incidents()) == [16, 17, 18, 19, 20]
    store._db.execute("DELETE FROM incidents")
    assert FaultStore(path).next_number() == 21


def test_a_kill_at_any_statement_leaves_an_incident_and_its_blame_together(path):
    """The process ends, without any cleaning up, before each statement of a writing in turn."""
    store = FaultStore(path)
    store.save_with_blame(FULL, BlameState())
    store.close()
    for cut in range(1, 20):
        child = os.fork()
        if child == 0:
            _write_and_die(path, cut)
        _, status = os.waitpid(child, 0)
        store = FaultStore(path)
        found = (store.incident(1), store.incident(2), store.blame())
        store.close()
        assert found in [(FULL, None, BlameState()), (FULL, EMPTY, STATE)]
        if os.waitstatus_to_exitcode(status) == 0:
            assert found == (FULL, EMPTY, STATE)
            assert cut > 4  # begin, two of the incident, one of the blame
            return
    raise AssertionError("it never came to its end")


def _write_and_die(path, cut):
    left = [cut]

    def seen(_statement):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), 9)

    store = FaultStore(path)
    store._db.set_trace_callback(seen)
    store.save_with_blame(EMPTY, STATE)
    os._exit(0)


def test_what_cannot_be_written_is_said_and_mpsd_goes_on(path):
    store = FaultStore(path)
    store.save(FULL)
    store._db.execute("PRAGMA query_only=1")  # as a full disk would
    assert not store.save(EMPTY)
    assert not store.save_blame(STATE)
    assert list(store.incidents()) == [FULL]


@pytest.mark.parametrize("body", ["{", "{}", "[]", '{"number": 1}'])
def test_a_damaged_row_is_refused(path, body):
    store = FaultStore(path)
    store.save(FULL)
    store._db.execute("UPDATE incidents SET body = ?", (body,))
    with pytest.raises(UnusablePath, match="cannot read"):
        next(store.incidents())

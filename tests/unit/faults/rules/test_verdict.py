"""The verdict on the evidence of one incident: every row of the tables in verdict.py."""

import pytest

from mpsd.faults.rules.response import is_known
from mpsd.faults.rules.verdict import Verdict, judge
from mpsd.model.accusation import accused, convicted_key, hurt
from mpsd.model.fault import Confidence, FaultClass, Party
from tests.unit.faults.rules.fault_setup import (
    ALONE,
    EPOCH,
    EVERYBODY,
    GPU,
    LEFT,
    PROVEN,
    SUSPECTED,
    UNKNOWN,
    A,
    B,
    C,
    FaultSetup,
    at,
    clean,
    dump,
    ended,
    exited,
    failed,
    kmod,
    nvml,
    report,
    sentinel,
    server_log,
    uvm,
    xid,
)

VERDICTS = [
    pytest.param([uvm(A), xid(31, process=B), server_log()], FaultClass.MMU, A, PROVEN, id="an out-of-bounds access"),
    pytest.param([xid(31, process=B), uvm(A, 900)], FaultClass.MMU, A, PROVEN, id="the proof comes last"),
    pytest.param([xid(31, process=B), server_log()], FaultClass.MMU, None, SUSPECTED, id="the pid of Xid 31 is no proof"),
    pytest.param(
        [xid(31, process=B, is_proof=True), server_log()],
        FaultClass.MMU,
        None,
        SUSPECTED,
        id="not even if it is said to be one",
    ),
    pytest.param([report(A, is_proof=True), server_log()], FaultClass.UNKNOWN, None, SUSPECTED, id="nor is a client's word"),
    pytest.param([xid(13, 15), xid(43, 15), server_log()], FaultClass.SM, None, SUSPECTED, id="an SM exception"),
    pytest.param([xid(13, 15), dump(A), clean(B), clean(C)], FaultClass.SM, A, PROVEN, id="with core dumps of all"),
    pytest.param([server_log(), dump(A)], FaultClass.SM, A, PROVEN, id="with the culprit's alone"),
    pytest.param([dump(A)], FaultClass.SM, A, PROVEN, id="and with nothing else"),
    pytest.param([kmod(A)], FaultClass.MMU, A, PROVEN, id="a record of the patched module"),
    pytest.param([xid(13, 15), server_log(), clean(B), clean(C)], FaultClass.SM, A, LEFT, id="everybody else is cleared"),
    pytest.param([xid(13, 15), server_log(), clean(B)], FaultClass.SM, None, SUSPECTED, id="two are left"),
    pytest.param([xid(13, 15), server_log(), clean(A), clean(B), clean(C)], FaultClass.SM, None, UNKNOWN, id="nobody is left"),
    pytest.param(
        [xid(31), server_log(), clean(B), clean(C)], FaultClass.MMU, None, SUSPECTED, id="a clean dump clears of no MMU fault"
    ),
    pytest.param(
        [xid(13, 15), xid(31), server_log(), clean(B), clean(C)], FaultClass.SM, None, SUSPECTED, id="nor if there were both"
    ),
    pytest.param([server_log(), clean(B), clean(C)], FaultClass.UNKNOWN, None, SUSPECTED, id="nor of who knows what"),
    pytest.param(
        [xid(13, 15), xid(48, 14), server_log(), dump(A)], FaultClass.DEVICE, None, UNKNOWN, id="lost memory makes exceptions"
    ),
    pytest.param([xid(109, 14), uvm(A)], FaultClass.MMU, A, PROVEN, id="a hung GPU does not undo a proof"),
    pytest.param([xid(13, 15, present=(A,)), server_log(present=(A,))], FaultClass.SM, A, ALONE, id="nobody else was there"),
    pytest.param([server_log(present=(A,))], FaultClass.UNKNOWN, A, ALONE, id="whatever it was"),
    pytest.param(
        [xid(31, present=(A,), process=B), server_log(present=(A,))],
        FaultClass.MMU,
        None,
        SUSPECTED,
        id="an Xid names another client",
    ),
    pytest.param(
        [xid(13, 15, present=(A,)), exited(B, 14), server_log(present=(A,))],
        FaultClass.SM,
        None,
        SUSPECTED,
        id="another has just gone",
    ),
    pytest.param([xid(13, 15, present=(A,)), server_log(present=(A, B))], FaultClass.SM, None, SUSPECTED, id="or was coming"),
    pytest.param([xid(13, 15, present=()), server_log(present=())], FaultClass.SM, None, UNKNOWN, id="nobody is known"),
    pytest.param([ended(A, -50), server_log()], FaultClass.HOST, None, SUSPECTED, id="a client was killed: no proof"),
    pytest.param([ended(A, -50), xid(31), server_log()], FaultClass.HOST, None, SUSPECTED, id="whatever the GPU says of it"),
    pytest.param([ended(A, -50), xid(13, 15), server_log()], FaultClass.SM, None, SUSPECTED, id="but this comes of no signal"),
    pytest.param([ended(A, -50, present=(A,)), server_log(present=(A,))], FaultClass.HOST, A, ALONE, id="killed alone"),
    pytest.param(
        [server_log(0, present=(A,)), ended(A, 185, present=(A,))], FaultClass.HOST, A, ALONE, id="and seen to be gone"
    ),
    pytest.param(
        [xid(13, 0, present=(A,)), ended(A, 185, present=(A,)), server_log(present=(A,))],
        FaultClass.SM,
        A,
        ALONE,
        id="but not for this",
    ),
    pytest.param([ended(A, -50), xid(43, 15), server_log()], FaultClass.SM, None, SUSPECTED, id="nor does a trap"),
    pytest.param([ended(A, -50), xid(43, 15), xid(31), server_log()], FaultClass.HOST, None, SUSPECTED, id="a kill has a 31"),
    pytest.param([ended(A, -50), xid(43, 15), nvml(31), server_log()], FaultClass.HOST, None, SUSPECTED, id="whoever says so"),
    pytest.param([ended(A, -50), nvml(43, 15), server_log()], FaultClass.HOST, None, SUSPECTED, id="43 of who knows whom"),
    pytest.param([xid(43, 15), xid(31, 14), server_log()], FaultClass.MMU, None, SUSPECTED, id="43 comes of an MMU fault too"),
    pytest.param([xid(43), server_log(), clean(B), clean(C)], FaultClass.SM, None, SUSPECTED, id="a trap's dumps clear nobody"),
    pytest.param([server_log(0), ended(A, 185)], FaultClass.HOST, None, SUSPECTED, id="killed, and seen late to be gone"),
    pytest.param([server_log(0), ended(A, 501)], FaultClass.UNKNOWN, None, SUSPECTED, id="killed after the fault"),
    pytest.param([nvml(13, 0), server_log(10), clean(B), clean(C)], FaultClass.SM, None, SUSPECTED, id="a guess clears nobody"),
    pytest.param(
        [nvml(31, 0), xid(13, 10), server_log()], FaultClass.SM, None, SUSPECTED, id="a guess is worth less than what is known"
    ),
    pytest.param([ended(A, -50), uvm(B)], FaultClass.MMU, B, PROVEN, id="killed while another faulted"),
    pytest.param([server_log(), exited(A, 331)], FaultClass.UNKNOWN, None, SUSPECTED, id="who dies of a fault did not make it"),
    pytest.param([failed(B, -60), ended(A, -50), server_log()], FaultClass.UNKNOWN, None, SUSPECTED, id="others died before"),
    pytest.param([report(B, -60), ended(A, -50), server_log()], FaultClass.UNKNOWN, None, SUSPECTED, id="others had errors"),
    pytest.param([failed(B, -600), ended(A, -50), xid(31), server_log()], FaultClass.HOST, None, SUSPECTED, id="of another"),
    pytest.param([failed(B, 2), ended(A, 100), xid(31), server_log()], FaultClass.MMU, None, SUSPECTED, id="or of this"),
    pytest.param([exited(B, -60), ended(A, -50), server_log()], FaultClass.HOST, None, SUSPECTED, id="others were done"),
    pytest.param(
        [ended(A, -1999), ended(B, 0), failed(C, 0.5), xid(31), server_log()], FaultClass.HOST, None, SUSPECTED, id="two killed"
    ),
    pytest.param([ended(A, -1700), server_log()], FaultClass.UNKNOWN, None, SUSPECTED, id="killed too long before"),
    pytest.param([xid(43, 15), server_log()], FaultClass.SM, None, SUSPECTED, id="a stopped channel"),
    pytest.param([xid(13, 15, present=(A,))], FaultClass.SM, None, UNKNOWN, id="no server has said so: not who is alone"),
    pytest.param([xid(13, 15), clean(B), clean(C)], FaultClass.SM, None, UNKNOWN, id="nor who is left"),
    pytest.param([xid(31)], FaultClass.MMU, None, UNKNOWN, id="nor is anybody suspected"),
    pytest.param([xid(31), report(A), ended(A, 200)], FaultClass.MMU, None, UNKNOWN, id="whatever clients say"),
    pytest.param([xid(13, 15), nvml(13)], FaultClass.SM, None, UNKNOWN, id="and the GPU"),
]


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "the last first"])
@pytest.mark.parametrize(("evidence", "fault_class", "culprit", "confidence"), VERDICTS)
def test_what_the_evidence_of_a_domain_says(evidence, fault_class, culprit, confidence, backwards):
    """In any order: sources are late."""
    setup = FaultSetup()
    order = sorted(evidence, key=lambda each: each.seen_ns, reverse=backwards)
    for each in order:
        setup.keep(setup.fusion.take(each, at(1000)))
    of_domain = [each for each in setup.incidents.values() if each.domain]
    assert [(each.fault_class, each.culprit, each.confidence) for each in of_domain] == [(fault_class, culprit, confidence)]
    (found,) = of_domain
    assert (found.culprit is not None) == (confidence in (PROVEN, ALONE, LEFT))
    assert (found.suspects != ()) == (confidence is SUSPECTED)
    assert not {found.culprit, *found.suspects} & set(found.victims)


def test_everything_of_one_fault_is_one_incident_with_its_place():
    """An out-of-bounds access as measured, from all sources, and the resulting text."""
    setup = FaultSetup().hear(uvm(A), report(A, 3), nvml(31), xid(31, process=B), report(B, 200))
    setup.hear(server_log(210), clean(B), clean(C))
    found = setup.one
    assert (found.culprit, found.victims, found.suspects) == (A, (B, C), ())
    assert (found.address, found.access, found.xids, found.gpu) == (0x7F00, "write", (31,), GPU)
    assert (found.began_ns, found.began_at) == (at(1.3), pytest.approx(EPOCH + 0.0013))
    assert [each.seen_ns for each in found.evidence] == sorted(each.seen_ns for each in found.evidence)
    assert len(found.evidence) == 8
    assert {each.process: each.program for each in found.parties} == {A: "p101", B: "p102", C: "p103"}


def test_what_an_innocent_says_of_itself_does_not_describe_the_fault():
    found = FaultSetup().hear(xid(13, 15), report(B, 16), dump(A), clean(B)).one
    assert (found.kernel, found.pc) == ("bad_kernel", 0x1F0)
    assert FaultSetup().hear(report(B, 10), xid(13, 15)).one.kernel == ""


def test_a_fault_that_the_module_absorbed_hurts_nobody_else():
    absorbed = kmod(A, is_contained=True)
    assert FaultSetup().hear(absorbed, report(A)).one.victims == ()
    assert FaultSetup().hear(absorbed, uvm(A), kmod(A, 2, is_contained=True)).one.victims == ()


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param([kmod(A)], id="it did not"),
        pytest.param([kmod(A, is_contained=True), kmod(A, 2)], id="not the next one"),
        pytest.param([kmod(A, is_contained=True), server_log()], id="the server says that it faulted"),
        pytest.param([kmod(A, is_contained=True), xid(31)], id="an Xid says so"),
        pytest.param([dump(A, is_contained=True)], id="somebody else says that it did"),
        pytest.param([kmod(A, is_contained=True, is_proof=False), uvm(A)], id="it was not a fault"),
    ],
)
def test_a_fault_that_it_did_not_absorb_hurts_everybody(evidence):
    assert FaultSetup().hear(*evidence).one.victims == (B, C)


@pytest.mark.parametrize(
    ("evidence", "victims"),
    [
        pytest.param([exited(B, 1), uvm(A, 1.3)], (C,), id="it was done before"),
        pytest.param([exited(B, 14), xid(13, 15), dump(A)], (C,), id="before the kernel's first line"),
        pytest.param([uvm(A, 1.3), exited(B, 2)], (B, C), id="it ended of it"),
        pytest.param([exited(B, 11, is_failure=True), xid(13, 15), dump(A)], (B, C), id="with an error, just before the line"),
        pytest.param([exited(B, 11, is_failure=True), xid(13, 45), dump(A)], (C,), id="with an error, long before"),
        pytest.param([ended(B, 1), uvm(A, 1.3)], (B, C), id="it was killed: of what is not known"),
        pytest.param([exited(B, 100), dump(A, 400)], (B, C), id="a dump comes later than the ends of those who were hurt"),
        pytest.param([exited(B, 100), server_log(138), dump(A, 400)], (B, C), id="and so may the server's log"),
    ],
)
def test_who_had_ended_before_a_fault_was_not_hurt_by_it(evidence, victims):
    assert FaultSetup().hear(*evidence).one.victims == victims


LIKELY = Confidence.LIKELY


@pytest.mark.parametrize(
    ("evidence", "culprit", "confidence"),
    [
        pytest.param([report(A, 12, is_failure=True)], A, LIKELY, id="one reports its error"),
        pytest.param([exited(A, 900, is_failure=True)], A, LIKELY, id="one ends with an error"),
        pytest.param([exited(A, 4000, is_failure=True)], A, LIKELY, id="seconds later"),
        pytest.param([exited(A, 6000, is_failure=True)], None, SUSPECTED, id="too late"),
        pytest.param([exited(A, -900, is_failure=True)], None, SUSPECTED, id="too early"),
        pytest.param([exited(A, 900)], None, SUSPECTED, id="one ends without an error"),
        pytest.param([ended(A, 900)], None, SUSPECTED, id="one is killed"),
        pytest.param([exited(A, 900, is_failure=True), exited(B, 950)], A, LIKELY, id="and another ends without an error"),
        pytest.param([exited(A, 900, is_failure=True), exited(B, 950, is_failure=True)], None, SUSPECTED, id="two do"),
        pytest.param([report(A, 12, is_failure=True), exited(B, 950, is_failure=True)], None, SUSPECTED, id="one each"),
        pytest.param([report(A, 12)], None, SUSPECTED, id="one reports another error"),
        pytest.param([report(A, 12, is_failure=True), sentinel(B, 5)], B, PROVEN, id="a proof goes first"),
    ],
)
def test_who_failed_alone_with_a_contained_exception(evidence, culprit, confidence):
    setup = FaultSetup().hear(sentinel(), *evidence).settle(12_000)
    assert (setup.one.culprit, setup.one.confidence, setup.one.victims) == (culprit, confidence, ())


def test_a_failure_names_nobody_where_clients_of_another_owner_were_present():
    """It can be by chance, while the culprit keeps quiet."""
    setup = FaultSetup(lambda process: Party(process, 1000 + (process == A), "p", "c1"))
    setup.hear(sentinel(), report(A, 12, is_failure=True)).settle(12_000)
    assert (setup.one.culprit, setup.one.confidence) == (None, SUSPECTED)


def test_who_failed_first_is_named_at_once_and_is_a_suspect_again_when_another_fails():
    setup = FaultSetup().hear(sentinel(), exited(A, 60, is_failure=True))
    assert (setup.one.culprit, setup.one.confidence) == (A, LIKELY)
    setup.hear(exited(B, 2000, is_failure=True))
    assert (setup.one.culprit, setup.one.confidence, setup.one.suspects) == (None, SUSPECTED, (A, B, C))


@pytest.mark.parametrize("culprit", [None, A])
def test_the_end_of_a_containment_seconds_later_is_of_the_same_fault(culprit):
    """The vendor's server has died: those who fail then need not be the culprit, and no second fault accuses them."""
    known = [sentinel(culprit, 14)] if culprit else []
    setup = FaultSetup().hear(sentinel(), *known, sentinel(ms=4500, is_contained=False, present=(B,)), failed(B, 4510))
    setup.settle(40_000)
    assert (setup.one.culprit, setup.one.confidence) == ((A, PROVEN) if culprit else (None, SUSPECTED))


def test_who_failed_alone_with_a_later_exception_in_the_same_servers_is_named_too():
    """The servers of a contained exception have not ended, so mpsd still knows their clients."""
    first = (sentinel(), failed(A, 60))
    later = (sentinel(ms=30_000, present=(B, C)), exited(B, 30_060, is_failure=True, present=(B, C)))
    setup = FaultSetup().hear(*first).settle(12_000).hear(*later).settle(42_000)
    assert [(each.culprit, each.confidence) for each in setup.incidents.values()] == [(A, LIKELY), (B, LIKELY)]


def test_a_look_after_one_exception_clears_no_client_of_another():
    """C has the kernels of both: it was convicted as the only one whom neither look had cleared."""
    evidence = []
    for pc, ms, innocent in ((0x1F0, 4, A), (0x2F0, 504, B)):
        evidence += [sentinel(ms=ms, pc=pc), sentinel(innocent, ms, pc=pc, is_proof=False, clears=True)]
    found = FaultSetup().hear(*evidence).settle(12_000).one
    assert (found.culprit, found.confidence, found.suspects) == (None, SUSPECTED, (A, B, C))


def test_it_is_no_culprit_where_the_exception_was_not_contained():
    evidence = xid(13, 15), server_log(), report(A, 12, is_failure=True), exited(A, 900, is_failure=True)
    assert FaultSetup().hear(*evidence).settle(60_000).one.confidence is SUSPECTED


def test_who_failed_alone_is_not_convicted_and_nobody_was_hurt():
    found = FaultSetup().hear(sentinel(), report(A, 12, is_failure=True)).settle(12_000).one
    assert (accused(found), convicted_key(found), hurt(found), is_known(found)) == ((A,), None, 0, False)


def test_a_verdict_is_the_same_whatever_order_its_evidence_has():
    evidence = [uvm(A), uvm(A, 9, address=5, access="read"), xid(31), report(B), dump(A)]
    both = {judge(tuple(each), frozenset(EVERYBODY), A) for each in (evidence, evidence[::-1])}
    assert both == {Verdict(FaultClass.MMU, A, PROVEN, (), (B, C), 0x7F00, "write", "bad_kernel", 0x1F0)}


@pytest.mark.parametrize(
    ("party_of", "confidence"),
    [
        pytest.param(lambda process: Party(process, 1000, "p", "c1"), LEFT, id="of one user and container"),
        pytest.param(lambda process: Party(process, 1000 + (process == A), "p", "c1"), SUSPECTED, id="of two users"),
        pytest.param(lambda process: Party(process, 0, "p", f"c{process == A}"), SUSPECTED, id="of two containers, one uid"),
        pytest.param(lambda process: Party(process), SUSPECTED, id="of users that are not known"),
        pytest.param(lambda process: None if process == A else Party(process, 1000), SUSPECTED, id="one is not known"),
    ],
)
def test_dumps_clear_only_among_clients_of_one_owner(party_of, confidence):
    """A client that forged a dump without an exception could otherwise convict another user's client, by clearing itself."""
    found = FaultSetup(party_of).hear(xid(13, 15), server_log(), clean(B), clean(C)).one
    assert (found.culprit, found.confidence) == (A if confidence is LEFT else None, confidence)
    assert set(found.suspects) == (set() if confidence is LEFT else {A, B, C})
    assert FaultSetup(party_of).hear(xid(13, 15), dump(A), server_log()).one.culprit == A  # it accuses its author all the same

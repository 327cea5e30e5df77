"""Fusion: one fault is one incident, whatever its sources report, lose or delay. Every row of the tables in fusion.py."""

import pytest
from msgspec.structs import replace

from mpsd.faults.rules.fusion import MOST_OPEN, Fusion
from mpsd.faults.rules.incident_record import MOST_SHOWN
from mpsd.model.fault import Deed, FaultClass, Source
from mpsd.model.process import ProcessId
from tests.unit.faults.rules.fault_setup import (
    ALONE,
    DOMAIN,
    GPU,
    PROVEN,
    STRANGER,
    SUSPECTED,
    UNKNOWN,
    A,
    B,
    C,
    D,
    FaultSetup,
    at,
    clean,
    dump,
    ended,
    exited,
    kmod,
    nvml,
    report,
    seen,
    server_log,
    uvm,
    xid,
)

OPENERS = [
    pytest.param(uvm(A), 1, id="a proof"),
    pytest.param(dump(A), 1, id="a dump with an exception"),
    pytest.param(xid(13), 1, id="an Xid that ends servers"),
    pytest.param(server_log(), 1, id="the vendor's log"),
    pytest.param(xid(79), 1, id="an Xid of the GPU"),
    pytest.param(xid(13, domain="", present=()), 0, id="an Xid of no domain"),
    pytest.param(nvml(31), 0, id="an Xid of no domain, from NVML"),
    pytest.param(xid(45), 0, id="a consequence"),
    pytest.param(xid(32), 0, id="an Xid that is nobody's end"),
    pytest.param(xid(999), 0, id="an Xid that nobody knows"),
    pytest.param(report(A), 0, id="a client's word"),
    pytest.param(ended(A, 0), 0, id="the end of a client"),
    pytest.param(clean(A), 0, id="a clean dump"),
    pytest.param(report(A, is_proof=True), 0, id="a client's word that claims to be proof"),
]


def test_the_fault_of_a_process_without_mps_is_not_the_fault_of_a_domain():
    """The module proves it, too; so a stranger could be blamed for what a client had done, and that client went free."""
    opened = FaultSetup().hear(xid(13)).hear(kmod(STRANGER, domain="", present=()))
    assert (opened.incidents[2].domain, opened.incidents[2].culprit) == ("", STRANGER)
    assert opened.incidents[1].culprit is None


@pytest.mark.parametrize(("first", "count"), OPENERS)
def test_what_opens_an_incident(first, count):
    assert len(FaultSetup().hear(first).incidents) == count


@pytest.mark.parametrize(
    "early",
    [nvml(31, 100), xid(45, 100), report(A, 100), ended(A, 100), clean(B, 100), xid(31, 100, domain="", present=())],
    ids=["nvml", "45", "report", "end", "clean dump", "kernel log"],
)
def test_what_opens_nothing_waits_for_an_incident(early):
    """It joins the incident, if their times match."""
    alike = replace(early, present=())
    assert alike in FaultSetup().hear(early, server_log(330)).one.evidence
    assert alike not in FaultSetup().hear(early, server_log(2200)).one.evidence


def test_what_waited_in_vain_is_dropped_and_counted():
    setup = FaultSetup().hear(nvml(31), xid(45), report(A), ended(A, 0)).settle(9000)
    assert len(setup.fusion) == 0
    assert setup.fusion.dropped == 2  # clients end, and complain, all the time


def test_an_xid_without_a_domain_joins_the_incident_that_fits():
    """Two domains of one GPU fault at the same time: the class decides, then the time."""
    setup = FaultSetup().hear(uvm(A, 0), seen(Source.VENDOR_LOG, 100, domain="d2", present=(D,), gpu=GPU))
    setup.hear(xid(13, 90, domain="d2"), nvml(13, 91), nvml(31, 92), nvml(31, 92, gpu="GPU-b"))
    assert [each.xids for each in setup.incidents.values()] == [(31,), (13,)]


def test_two_proofs_are_two_incidents():
    """Both are guilty, neither is the other's victim, and each proof is evidence in the first."""
    setup = FaultSetup().hear(uvm(A, 1), uvm(B, 5), xid(31), dump(B, 300), uvm(A, 8, address=1), server_log())
    first, second = setup.incidents.values()
    assert (first.culprit, first.victims, first.confidence) == (A, (C,), PROVEN)
    assert (second.culprit, second.victims, second.confidence) == (B, (C,), PROVEN)
    assert first.domain == second.domain == DOMAIN


def test_what_was_proven_stays_said():
    """A proof of another that is older and comes later opens another incident."""
    setup = FaultSetup().hear(uvm(B, 5), uvm(A, 1))
    assert [each.culprit for each in setup.incidents.values()] == [B, A]


def test_domains_fault_apart():
    other = {"domain": "d2", "present": (D,)}
    setup = FaultSetup().hear(server_log(), server_log(331, **other), uvm(D, 300, **other))
    assert [(each.domain, each.culprit) for each in setup.incidents.values()] == [(DOMAIN, None), ("d2", D)]


def test_a_late_dump_convicts_in_the_incident_where_its_process_was():
    """The domain has fresh servers by then, and other clients."""
    setup = FaultSetup().hear(xid(13, 15), server_log()).recover(700).hear(dump(A, 2000, present=(D,)))
    assert (setup.one.culprit, setup.one.victims) == (A, (B, C))


def test_a_late_dump_does_not_convict_in_the_incident_after_its_own():
    setup = FaultSetup().hear(xid(13, 15)).recover(700).hear(server_log(1500, present=(C, D)), dump(A, 2000, present=(C, D)))
    assert [(each.culprit, each.confidence) for each in setup.incidents.values()] == [(A, PROVEN), (None, SUSPECTED)]


def test_a_dump_of_somebody_who_was_not_there_says_that_it_was_not_known_who_was():
    """One client seemed to be alone, and another one of the domain has the exception."""
    setup = FaultSetup().hear(server_log(15, present=(A,)))
    assert setup.one.confidence is ALONE
    setup.hear(dump(B, 400, present=(A,)))
    assert [(each.culprit, each.confidence) for each in setup.incidents.values()] == [(None, UNKNOWN), (B, PROVEN)]


def test_nor_if_its_domain_has_fresh_servers_by_then():
    setup = FaultSetup().hear(xid(13, 15, present=(A,))).recover(700).hear(dump(B, 2000, present=(C,)))
    assert [(each.culprit, each.confidence) for each in setup.incidents.values()] == [(None, UNKNOWN), (B, PROVEN)]
    assert setup.incidents[2].victims == ()  # who is there now was not


def test_a_dump_is_believed_where_it_was_not_known_who_was_there():
    setup = FaultSetup().recover(10).hear(xid(13, 15, present=(C,)), dump(A, 400, present=(C,)))
    assert (setup.one.culprit, setup.one.victims) == (A, ())


def test_the_first_seconds_of_mpsd_accuse_nobody_without_proof():
    """Clients that left before mpsd began to watch are unknown."""
    for began_ms, confidence in ((-5999, UNKNOWN), (-6001, ALONE)):
        fusion = Fusion(1, lambda ns: 0.0, since_ns=at(began_ms))
        (found,) = fusion.take(server_log(0, present=(A,)), at(1))
        assert found.confidence is confidence


def test_a_domain_that_mpsd_finds_failed_does_not_fault_again():
    setup = FaultSetup()
    setup.fusion.domain_failed(DOMAIN, at(0))
    assert setup.hear(server_log(9000, present=(A,))).one.confidence is UNKNOWN
    assert setup.recover(9500).hear(server_log(20_000, present=(A,))).incidents[2].confidence is ALONE


def test_a_stranger_is_never_convicted_by_what_others_say_of_it():
    setup = FaultSetup().hear(server_log(present=(A, B)), xid(31, process=STRANGER, present=(A, B)), report(STRANGER))
    assert setup.one.culprit is None


def test_fresh_servers_begin_a_new_incident():
    setup = FaultSetup().hear(server_log(0, present=(A,))).recover(500).hear(server_log(900, present=(B,)))
    assert [(each.culprit, each.confidence) for each in setup.incidents.values()] == [(A, ALONE), (B, ALONE)]


def test_what_was_seen_before_servers_were_renewed_is_of_the_old_ones():
    """It comes late, and with the clients that are there by then."""
    setup = FaultSetup().hear(server_log(0, present=(A, B))).recover(500)
    setup.hear(xid(13, 400, present=(C,)), xid(43, 600, present=(C,)), late_ms=900)
    assert (setup.one.suspects, setup.one.xids) == ((A, B), (13, 43))


def test_what_was_seen_before_servers_were_renewed_is_not_of_the_new_ones():
    """All else of the first fault was lost, and its only trace comes during the second, less than two seconds after."""
    setup = FaultSetup().recover(500).hear(server_log(1900, present=(A,)))
    before = setup.one
    setup.hear(server_log(200, present=(A,)), late_ms=1800)
    assert (setup.incidents[1], setup.incidents[2].confidence) == (before, UNKNOWN)


def test_a_late_first_word_of_a_fault_accuses_nobody():
    """The clients present when it arrives need not have been present at the fault."""
    setup = FaultSetup().recover(500).hear(server_log(400, present=(C,)), late_ms=300)
    assert (setup.one.confidence, setup.one.culprit, setup.one.victims) == (UNKNOWN, None, ())
    assert FaultSetup().hear(server_log(0, present=(C,)), late_ms=4100).one.confidence is UNKNOWN
    assert FaultSetup().hear(server_log(0, present=(C,)), late_ms=3900).one.confidence is ALONE


def test_servers_that_have_ended_do_not_fault_again():
    """A client lingers, and its channels are stopped long after."""
    setup = FaultSetup().hear(server_log(0)).settle(31_000).settle(41_000)
    assert setup.one.is_settled
    setup.hear(server_log(60_000, present=(C,)))
    assert setup.incidents[2].confidence is UNKNOWN


def test_what_goes_on_while_servers_are_not_renewed_is_of_the_same_fault():
    setup = FaultSetup().hear(server_log(0), server_log(9000), xid(43, 25_000), exited(B, 29_000))
    assert setup.one.xids == (43,)


def test_a_contained_fault_does_not_swallow_the_next_one():
    """Its domain continues, and another client faults there ten seconds later."""
    setup = FaultSetup().hear(kmod(A), server_log(10_000, present=(B, C)))
    assert [(each.culprit, each.suspects) for each in setup.incidents.values()] == [(A, ()), (None, (B, C))]


def test_an_xid_that_names_who_has_just_moved_accuses_nobody_where_it_is_now():
    """A newcomer was on its way into the domain that faulted, and was placed in another before its second Xid came."""
    setup = FaultSetup().hear(xid(13, 0, present=(A, B, D)), xid(13, 120, domain="d2", present=(D,)))
    setup.hear(server_log(330, present=(A, B, D), process=D)).recover(700).settle(31_000)
    assert [(each.domain, each.confidence, each.culprit) for each in setup.incidents.values()] == [
        (DOMAIN, SUSPECTED, None),
        ("d2", UNKNOWN, None),
    ]
    assert all(each.is_settled for each in setup.incidents.values())


def test_nor_does_it_make_anybody_doubt_the_next_fault_there():
    """Its servers have not ended."""
    setup = FaultSetup().hear(xid(13, 0, domain="d2", present=(D,))).settle(31_000)
    setup.hear(server_log(40_000, domain="d2", present=(D,)))
    assert [(each.confidence, each.culprit) for each in setup.incidents.values()] == [(UNKNOWN, None), (ALONE, D)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["proof first", "Xid first"])
def test_the_gpu_is_taken_from_what_tells_it_alone(order):
    """A domain of two GPUs does not show which one, and the process that an Xid names may have gone."""
    heard = [uvm(A, 100), nvml(31, 126)]
    assert FaultSetup().hear(*(heard[each] for each in order)).one.gpu == GPU


def test_the_gpu_is_not_guessed_between_two_incidents():
    setup = FaultSetup().hear(uvm(A, 100), seen(Source.VENDOR_LOG, 110, domain="d2", present=(D,)), nvml(31, 126))
    assert [incident.gpu for incident in setup.incidents.values()] == ["", ""]


def test_errors_of_the_gpu_are_one_incident_and_accuse_nobody():
    setup = FaultSetup().hear(xid(79, 0), xid(79, 9000), nvml(79, 9001), xid(48, 20_000), xid(31, 20_001, present=(A,)))
    device, domain = setup.incidents.values()
    assert (device.domain, device.gpu, device.xids, device.confidence) == ("", GPU, (79, 48), UNKNOWN)
    assert (domain.fault_class, domain.confidence, domain.culprit) == (FaultClass.DEVICE, UNKNOWN, None)
    assert domain.victims == (A,)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_error_of_the_gpu_excuses_those_whose_server_ended(order):
    both = [xid(95, 10, domain="", present=()), server_log(20, present=(A,))]
    setup = FaultSetup().hear(*(both[index] for index in order))
    assert {each.confidence for each in setup.incidents.values()} == {UNKNOWN}


def test_an_error_of_another_gpu_does_not():
    setup = FaultSetup().hear(xid(95, 10, domain="", gpu="GPU-b"), server_log(20, present=(A,), gpu=GPU))
    assert setup.incidents[2].confidence is ALONE


def test_a_row_that_was_replaced_does_not():
    assert FaultSetup().hear(xid(63, 10), server_log(20, present=(A,))).incidents[2].confidence is ALONE


SETTLING = [
    pytest.param([server_log(0)], 500, 2999, False, id="recovered, and late evidence may come"),
    pytest.param([server_log(0)], 500, 3000, True, id="recovered"),
    pytest.param([server_log(0), dump(A, 1500)], 500, 4499, False, id="late evidence came"),
    pytest.param([server_log(0)], None, 29_999, False, id="not recovered"),
    pytest.param([server_log(0)], None, 30_000, True, id="never recovered"),
    pytest.param([xid(79, 0), xid(79, 20_000)], None, 49_999, False, id="the GPU is not silent"),
    pytest.param([xid(79, 0), xid(79, 20_000)], None, 50_000, True, id="the GPU is silent"),
]


@pytest.mark.parametrize(("evidence", "recovered_ms", "ms", "is_settled"), SETTLING)
def test_when_an_incident_is_settled(evidence, recovered_ms, ms, is_settled):
    setup = FaultSetup().hear(evidence[0])
    if recovered_ms is not None:
        setup.recover(recovered_ms)
    setup.hear(*evidence[1:]).settle(ms)
    assert setup.one.is_settled is is_settled
    due = setup.fusion.next_settle_ns()
    assert due is None or due > at(ms)


def test_a_settled_incident_is_changed_by_a_late_dump_and_then_forgotten():
    setup = FaultSetup().hear(xid(13, 0)).recover(500).settle(3100).hear(dump(A, 5000))
    assert (setup.one.is_settled, setup.one.culprit) == (True, A)
    setup.settle(10_500)
    assert len(setup.fusion._dossiers) == 0


def test_the_same_word_twice_changes_nothing():
    setup = FaultSetup().hear(server_log())
    before = setup.one
    assert setup.hear(replace(server_log(), present=(A, B, C))).one is before


def test_deeds_are_part_of_an_incident():
    setup = FaultSetup().hear(uvm(A))
    setup.keep(setup.fusion.note(1, Deed(at(2), "terminate_client")))
    assert setup.one.deeds == (Deed(at(2), "terminate_client"),)
    assert setup.fusion.note(77, Deed(at(2), "too late")) == ()


def test_faults_that_clients_of_one_domain_make_up_end_no_incident_of_another():
    """Each of a user's processes can write the dump of an exception; the culprit elsewhere was then not found any more."""
    setup = FaultSetup().hear(server_log(domain="d2", present=(A, B)))
    for number in range(2 * MOST_OPEN):
        setup.hear(dump(ProcessId(1000 + number, 1), 0.001 * number, domain="d1"))
    setup.hear(uvm(A, 0.5, domain="d2", present=(A, B)))
    [incident] = [each for each in setup.incidents.values() if each.domain == "d2"]
    assert (incident.culprit, incident.confidence, incident.is_settled) == (A, PROVEN, False)


def test_ends_of_clients_of_one_domain_push_out_none_of_another():
    """The fault that a killed client had caused was held against the others of its domain."""
    setup = FaultSetup().hear(ended(A, -0.1))
    setup.hear(*(exited(ProcessId(1000 + number, 1), -0.05, domain="d1", present=()) for number in range(200)))
    setup.hear(server_log(present=(A, B, C)))
    assert setup.one.fault_class is FaultClass.HOST


def test_everything_is_bounded():
    """A thousand domains, and evidence without end."""
    setup = FaultSetup()
    for number in range(1000):
        setup.hear(server_log(number, domain=f"d{number}"), nvml(31, number + 0.5, gpu="GPU-z"), report(D, number, domain="x"))
    assert len(setup.fusion._dossiers) == MOST_OPEN
    assert setup.fusion.dropped > 0
    assert sum(each.is_settled for each in setup.incidents.values()) == 1000 - MOST_OPEN  # none of them waits for ever
    setup = FaultSetup()
    for number in range(1000):
        setup.hear(server_log(number / 10), clean(ProcessId(number, 1), number / 10))
    setup.hear(dump(A, 100))
    assert len(setup.one.evidence) == MOST_SHOWN
    assert setup.one.culprit == A
    assert replace(dump(A, 100), present=()) in setup.one.evidence

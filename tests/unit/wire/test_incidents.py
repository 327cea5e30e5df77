"""The parts of a fault that each receiver gets, and the size limit."""

from typing import Any

import pytest
from msgspec.structs import replace

from mpsd.model.fault import Confidence, Deed, Incident, Observation, Party, Source
from mpsd.model.process import ProcessId
from mpsd.wire.incidents import NAMING, incident_facts, incident_report
from mpsd.wire.plain import plain
from mpsd.wire.rpc import MAX_BYTES, Response, encode
from tests.unit.api.fake_incidents import ADDRESS, ALICES, BEGAN_NS, BOBS, PARTIES, PC, of_the_gpu, proven, suspected

ALICE, BOB, CAROL, OPERATOR = 1000, 2000, 3000, None
ALONE = replace(proven(), victims=(), parties=PARTIES[:1], evidence=(replace(proven().evidence[0], present=(ALICES,)),))
SHARED_SUSPICION = replace(suspected(), suspects=(ALICES, BOBS), parties=PARTIES)


@pytest.mark.parametrize(
    ("incident", "reader", "culprit", "victim", "has_address", "has_words"),
    [
        pytest.param(proven(), OPERATOR, 586, 700, True, True, id="an operator is told everything"),
        pytest.param(proven(), ALICE, 586, None, True, False, id="the culprit's user: not whom it hurt"),
        pytest.param(proven(), BOB, None, 700, False, False, id="a victim's user: not who it was"),
        pytest.param(proven(), CAROL, None, None, False, False, id="somebody else: only that it was"),
        pytest.param(ALONE, ALICE, 586, ..., True, True, id="where all is one's own, all is told"),
        pytest.param(ALONE, BOB, None, ..., False, False, id="but to nobody else"),
        pytest.param(replace(ALONE, parties=()), ALICE, None, ..., False, False, id="nobody knows whose it was: nobody's"),
        pytest.param(replace(ALONE, parties=(Party(ALICES, None),)), ALICE, None, ..., False, False, id="no uid is nobody's"),
    ],
)
def test_who_is_told_what(
    incident: Incident, reader: int | None, culprit: int | None, victim: Any, has_address: bool, has_words: bool
) -> None:
    told = incident_report(incident, reader)
    assert told["culprit"] is not None
    assert told["culprit"]["pid"] == culprit
    assert [each["pid"] for each in told["victims"]] == ([] if victim is ... else [victim])
    assert (told["address"], told["kernel"], told["pc"]) == ((ADDRESS, "oob_write", PC) if has_address else (None, "", None))
    assert {bool(each["text"]) for each in (*told["evidence"], *told["deeds"])} == {has_words}
    assert told["confidence"] == "proven"
    assert told["hurt"] == len(incident.victims)


@pytest.mark.parametrize("reader", [ALICE, BOB, CAROL])
def test_what_is_not_to_be_known_is_in_no_field(reader: int) -> None:
    """Wherever it may stand: the whole report is looked through."""
    words = str(plain(incident_report(proven(), reader)))
    for party in PARTIES:
        if party.uid != reader:
            for secret in (party.process.pid, party.process.start_time, party.program, party.container, party.key):
                assert str(secret) not in words, secret
    if reader != ALICE:
        assert not [secret for secret in (ADDRESS, PC, "oob_write") if str(secret) in words]


def test_what_an_observation_tells_of_is_told_to_whom_it_names() -> None:
    told = incident_report(proven(), BOB)["evidence"]
    assert [each["process"] and each["process"]["pid"] for each in told] == [None, 700, None, None]
    assert told[0]["process"] is not None
    assert told[2]["process"] is None
    assert [each["address"] for each in told] == [None] * 4
    assert incident_report(proven(), ALICE)["evidence"][0]["address"] == ADDRESS


def test_words_may_name_whoever_was_there() -> None:
    """Bob is not involved, but was present: a source's text may be about him."""
    seen = replace(ALONE.evidence[0], present=(ALICES, BOBS), text="700 was there")
    told = incident_report(replace(ALONE, evidence=(seen,)), ALICE)
    assert told["evidence"][0]["text"] == ""
    assert told["evidence"][0]["present"] == 2


def test_the_accused_share_what_they_did_only_with_each_others_user() -> None:
    known = {"address": ADDRESS, "kernel": "k"}
    assert incident_facts(replace(suspected(), **known), ALICE)["kernel"] == "k"
    assert incident_facts(replace(SHARED_SUSPICION, **known), ALICE)["kernel"] == ""
    assert incident_facts(replace(SHARED_SUSPICION, **known), OPERATOR)["kernel"] == "k"


def test_what_names_somebody_is_not_in_the_events_of_others() -> None:
    """The event bus omits whole facts: the rest names no process."""
    left = {name: value for name, value in incident_facts(proven()).items() if name not in NAMING}
    words = str(left)
    for party in PARTIES:
        assert not [secret for secret in (party.program, party.container, str(party.process.pid)) if secret in words]
    assert str(ADDRESS) not in words
    assert (left["number"], left["hurt"], left["confidence"]) == (1, 1, "proven")


def test_a_row_is_the_beginning_of_a_report() -> None:
    for incident in (proven(), suspected(), of_the_gpu()):
        row, report = incident_facts(incident), incident_report(incident)
        assert {name: report[name] for name in row} == row
        assert list(report)[: len(row)] == list(row)


def test_numbers_are_those_of_nvidia_in_words() -> None:
    [xid] = incident_facts(of_the_gpu())["xids"]
    assert xid["number"] == 79
    assert "fallen off the bus" in xid["name"]
    assert xid["meaning"]
    [unheard_of] = incident_facts(replace(of_the_gpu(), xids=(4711,)))["xids"]
    assert unheard_of["meaning"]


def test_times_are_told_from_the_first_sign_on() -> None:
    told = incident_report(proven())
    assert [each["after_seconds"] for each in told["evidence"]] == [0.0, 0.127, 0.148, 0.151]
    assert [each["after_seconds"] for each in told["deeds"]] == [0.002, 0.41]


@pytest.mark.parametrize("reader", [OPERATOR, ALICE])
def test_the_largest_fault_fits_into_a_datagram(reader: int | None) -> None:
    """With any names that users chose; omitted entries are counted, and the first ones are kept."""
    many = tuple(ProcessId(pid, 2**62) for pid in range(1, 2001))
    long = "\N{PILE OF POO}" * 400
    incident = replace(
        proven(), suspects=many, victims=many, confidence=Confidence.SUSPECTED, culprit=many[0], kernel=long, address=2**64 - 1,
        xids=tuple(range(1000)),
        evidence=tuple(
            Observation(Source.REPORT, BEGAN_NS + at, process=many[0], present=many[:3], text=long, kernel=long)
            for at in range(900)
        ),
        deeds=(Deed(BEGAN_NS, long),) * 500,
        parties=tuple(Party(each, ALICE, long, long, 2**62) for each in many),
    )  # fmt: skip
    told = incident_report(incident, reader)
    assert len(encode(Response(2**32 - 1, None, told))) <= MAX_BYTES
    shown = sum(len(told[name]) for name in ("suspects", "victims", "evidence", "deeds"))
    assert told["left_out"] == 2000 * 2 + 900 + 500 - shown
    assert told["evidence"][0]["after_seconds"] == 0.0
    assert told["suspects"][0]["pid"] == 1
    assert told["suspected"] == 2000
    assert len(encode(Response(1, None, incident_facts(incident, reader)))) < 16_000


def test_a_name_that_is_no_text_does_not_break_a_frame() -> None:
    """A lone surrogate is what becomes of a file name that is not UTF-8."""
    strange = replace(proven(), kernel="\udcff", parties=(Party(ALICES, ALICE, "\udcff", "\udcff"),))
    encode(Response(1, None, incident_report(strange)))

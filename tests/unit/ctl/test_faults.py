"""mpsctl faults, fault, blame, pardon: the faults shown, the sentences, and the timeline."""

import dataclasses
import json
from pathlib import Path

import pytest
from mpsctl import incident
from mpsctl.incident import Names
from mpsctl.timeline import LEGEND, draw, lanes
from mpsd_client import values
from mpsd_client._reading import read
from msgspec.structs import replace

from mpsd.api.authority import Peer
from mpsd.model.fault import Confidence, FaultClass, Incident, Party
from mpsd.wire.incidents import incident_report
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER
from tests.unit.api.fake_incidents import ALICES, ALICES_SECOND, BOBS, PARTIES, of_the_gpu, proven, suspected
from tests.unit.ctl.console import USERS, furnish, open_console

BOB = Peer(700, 2000, False)
WROTE = "wrote to 0x7f3a00001000 (no mapping) in kernel `oob_write` at PC 0x7f3b000002a0"
NAMES = Names(lambda uid: USERS.get(uid, str(uid)), {})
ALICE = "python3[586] of user alice in container train.service under lease 1"


def told(of: Incident, reader: int | None = None) -> values.IncidentReport:
    """Return an incident as the caller receives it."""
    return read(values.IncidentReport, incident_report(of, reader))


@pytest.mark.parametrize(
    ("words", "peer", "expected"),
    [
        ("faults", OPERATOR, [1, 2, 3, 4]),
        ("faults --last 2", OPERATOR, [3, 4]),
        ("faults --last 9", OPERATOR, [1, 2, 3, 4]),
        ("faults --last 1 --class sm", OPERATOR, [4]),
        ("faults --after 2", OPERATOR, [3, 4]),
        ("faults --since 41s", OPERATOR, [2, 3, 4]),
        ("faults --domain d1 --class mmu", OPERATOR, [1]),
        ("faults --culprit 1000", OPERATOR, [1]),
        ("faults --mine", OWNER, [1, 2, 4]),
        ("faults --mine", BOB, [1]),
        ("faults --mine", STRANGER, []),
    ],
)
async def test_which_are_listed(words: str, peer: Peer, expected: list[int], tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        found = json.loads(await console.answer(*words.split(), "--json", peer=peer))
    assert [each["number"] for each in found] == expected


async def test_what_others_are_not_told_is_not_shown(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        furnish(console)
        row = (await console.answer("faults", "--class", "mmu", peer=BOB)).splitlines()[1]
        report = await console.answer("fault", "1", peer=BOB, COLUMNS="100")
    assert "another user's" in row
    assert report.startswith("Fault 1\nA client of another user made an access that no mapping allows; proven by uvm_events")
    assert "trainer[700] of user bob in container 3f2a9c0d1e2f" in report
    for secret in ("python3", "train.service", "0x7f3a", "oob_write", "lease:1"):
        assert secret not in report


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (proven(), f"{ALICE} {WROTE}; proven by uvm_events at the first sign."),
        (replace(proven(), evidence=(replace(proven().evidence[0], seen_ns=proven().began_ns + 1_300_000),)),
         f"{ALICE} {WROTE}; proven by uvm_events 1.3 ms after the first sign."),
        (replace(proven(), address=96, access="read", kernel="", pc=None),
         f"{ALICE} read from 0x60 (null and 96 bytes); proven by uvm_events at the first sign."),
        (replace(proven(), address=None, kernel="k", pc=None, confidence=Confidence.ALONE),
         f"{ALICE} made an access that no mapping allows in kernel `k`; no other client was in the domain."),
        (replace(proven(), fault_class=FaultClass.SM, confidence=Confidence.LEFT, kernel="", pc=None),
         f"{ALICE} raised an exception of an SM; all other clients in the domain were cleared."),
        (replace(proven(), fault_class=FaultClass.HOST, confidence=Confidence.ALONE, kernel="", pc=None),
         f"{ALICE} ended while its work ran on the GPU; no other client was in the domain."),
        (suspected(), "One of 2 suspects raised an exception of an SM; mpsd accuses no client until one of them faults alone."),
        (of_the_gpu(), f"GPU {of_the_gpu().gpu} failed; mpsd accuses no client."),
        (replace(suspected(), fault_class=FaultClass.UNKNOWN, confidence=Confidence.UNKNOWN, suspects=()),
         "A client in domain d1 caused a fault of an unknown kind; mpsd accuses no client."),
    ],
)  # fmt: skip
def test_the_first_sentence(of: Incident, said: str) -> None:
    assert incident.headline(told(of), NAMES) == said


@pytest.mark.parametrize(
    ("of", "words", "others"),
    [
        (proven(), "run python3 alone, under compute-sanitizer", "null pointer"),
        (replace(proven(), address=96), "null pointer", "shield"),
        (replace(proven(), address=96 << 10), "The shield makes such an access harmless", "cuda-gdb"),
        (suspected(), "mpsctl env --core-dumps", "mpsctl pardon"),
        (suspected(), "mpsctl blame shows the groups of suspects", "mpsctl pardon"),
        (replace(proven(), fault_class=FaultClass.SM), "cuda-gdb", "core-dumps"),
        (replace(proven(), fault_class=FaultClass.HOST), "mpsctl stop", "compute-sanitizer"),
        (replace(proven(), fault_class=FaultClass.UNKNOWN), "server.log", "compute-sanitizer"),
        (of_the_gpu(), f"mpsctl pardon {of_the_gpu().gpu}", "has lost its context"),
        (proven(), "mpsctl pardon lease:1:1000", "core-dumps"),
        (replace(proven(), parties=(replace(PARTIES[0], lease_id=None, lasting="container:a b;c"), PARTIES[1])),
         "mpsctl pardon 'container:a b;c:1000'", "core-dumps"),
    ],
)  # fmt: skip
def test_advice_is_for_this_fault(of: Incident, words: str, others: str) -> None:
    advice = "\n".join(incident.advice(told(of)))
    assert words in advice
    assert others not in advice


def test_the_hurt_are_named_or_counted() -> None:
    of = replace(proven(), victims=(BOBS, ALICES))
    bob = "trainer[700] of user bob in container 3f2a9c0d1e2f"
    assert incident.hurt(told(of), NAMES) == [bob, ALICE]
    assert incident.hurt(told(of, 2000), NAMES) == [bob, "1 client of other users"]
    assert incident.hurt(told(of, 3000), NAMES) == ["2 clients of other users"]
    assert incident.hurt(told(suspected()), NAMES) == ["1 of the 2 suspects"]
    assert incident.hurt(told(of_the_gpu()), NAMES) == []


def test_a_key_that_is_convicted_is_named_though_no_process_is() -> None:
    """`blame` showed a conviction, while the report accused no client and listed none as hurt."""
    parties = tuple(Party(process, 1000, "python3") for process in (ALICES, ALICES_SECOND))
    report = told(replace(suspected(), is_settled=True, parties=parties))
    held = "it is not known which of them, so the key that all of them have counts as the culprit"
    head = f"One of 2 clients with the key user:1000:python3 raised an exception of an SM; {held}."
    assert incident.headline(report, NAMES) == head
    assert incident.pairs(report, NAMES)["culprit"] == "one of 2 clients with the key user:1000:python3"
    assert (incident.in_a_cell(report, NAMES), incident.hurt_in_a_cell(report)) == ("user:1000:python3, one of 2", 1)
    assert any("mpsctl pardon user:1000:python3" in line for line in incident.advice(report))
    assert not any("suspects are together" in line for line in incident.advice(report))


def test_who_was_hurt_is_not_known_where_it_is_not_known_who_was_there() -> None:
    unknown = replace(proven(), culprit=None, confidence=Confidence.UNKNOWN, victims=())
    assert incident.hurt_in_a_cell(told(unknown)) is None
    assert incident.hurt_in_a_cell(told(of_the_gpu())) == 0


def test_an_innocent_that_a_source_names_is_not_accused() -> None:
    """The pid of an Xid is mostly a victim's: a reader of the report must not take it for the culprit's."""
    proof, xid, _, report = (incident.seen(each) for each in told(proven()).evidence)
    assert proof.startswith("proof: python3[586]")
    assert xid.startswith("names trainer[700], which proves nothing")
    assert report.startswith("python3[586]; CUDA_ERROR")
    cleared = replace(proven().evidence[0], is_proof=False, clears=True)
    assert incident.seen(told(replace(proven(), evidence=(cleared,))).evidence[0]).startswith("clears python3[586]")


@pytest.mark.parametrize("width", [20, 40, 80, 120])
def test_the_timeline_fits_and_is_in_order(width: int) -> None:
    head, *rows, blank, legend = draw(lanes(told(proven())), width)
    assert [row.split()[0] for row in rows] == ["uvm_events", "kernel_log", "vendor_log", "report", "mpsd"]
    assert max(map(len, (head, *rows))) <= max(width, 32)
    assert head.endswith("410 ms")
    assert (blank, legend) == ("", LEGEND)
    signs = [row.rindex(sign) for row, sign in zip(rows[:4], "#ooo", strict=True)]
    assert signs == sorted(signs)
    assert rows[4].endswith("!")


def test_a_fault_of_one_moment_has_a_timeline() -> None:
    of = replace(of_the_gpu(), deeds=())
    assert draw(lanes(told(of)), 40)[1] == "nvml  o"
    assert lanes(told(replace(of, evidence=()))) == []
    assert draw([], 40)[0] == "  0 ms"


def test_a_deed_before_the_first_sign_is_drawn_before_it() -> None:
    """Evidence may be found that is older than what began it all; then times below nothing do not leave the picture."""
    of = told(proven())
    early = dataclasses.replace(of, deeds=(values.Deed(-0.41, "earlier"),), evidence=of.evidence[:1])
    head, seen, done = draw(lanes(early), 60)[:3]
    assert head.split()[:2] == ["-410", "ms"]
    assert done.index("!") < seen.index("#") < 60


@pytest.mark.parametrize(("seconds", "said"), [(0.0, "+0.0 ms"), (0.0123, "+12.3 ms"), (-0.1545, "-154.5 ms")])
def test_a_time_says_whether_it_was_before_or_after_the_first_sign(seconds: float, said: str) -> None:
    assert incident.after(seconds) == said


def test_what_lies_close_together_is_told_apart_beside_what_took_long() -> None:
    """A proof after 0.3 ms, an Xid after 127, the last client's end after half a minute."""
    of = told(proven())
    late = dataclasses.replace(of, deeds=(*of.deeds, values.Deed(30.0, "the last client has gone")))
    head, proof, xid, *_ = draw(lanes(late), 80)
    assert head.split() == ["0", "ms", "1", "ms", "10", "ms", "100", "ms", "1", "s", "30", "s"]
    assert xid.rindex("o") - proof.rindex("#") > 20
    assert 80 - xid.rindex("o") > 20


def test_a_shared_place_shows_what_says_most() -> None:
    seen = proven().evidence
    same = replace(proven(), evidence=(replace(seen[0], is_proof=False), seen[0], replace(seen[0], is_proof=False)), deeds=())
    assert draw(lanes(told(same)), 60)[1].endswith("#")


async def test_a_report_of_nothing_but_a_number_is_shown(tmp_path: Path, short_dir: Path) -> None:
    empty = replace(
        of_the_gpu(), fault_class=FaultClass.UNKNOWN, gpu="", evidence=(), deeds=(), xids=(), is_settled=False, number=9
    )
    async with open_console(tmp_path, short_dir) as console:
        console.daemon.fakes.faults.keep(empty)
        out = await console.answer("fault", "9", peer=STRANGER)
    assert out.startswith("Fault 9\nA client caused a fault of an unknown kind; mpsd accuses no client.\n")
    assert "When\n" not in out
    assert "more may come" in out


async def test_nobodys_words_move_the_cursor(tmp_path: Path, short_dir: Path) -> None:
    nasty = "\x1b[2J\n[red]\u202e<b>"
    party = replace(PARTIES[0], program=nasty, container=nasty, lease_id=None)
    seen = replace(proven().evidence[0], text=nasty, kernel=nasty)
    deeds = (replace(proven().deeds[0], text=nasty),)
    async with open_console(tmp_path, short_dir) as console:
        console.daemon.fakes.faults.keep(
            replace(proven(), kernel=nasty, parties=(party,), evidence=(seen,), deeds=deeds, victims=(ALICES,))
        )
        for words in ("fault 1", "faults"):
            out = await console.answer(*words.split(), COLUMNS="4000")
            assert "\x1b" not in out
            assert "\u202e" not in out
            assert "\\x1b[2J\\n[red]\\u202e<b>" in out


async def test_a_pardon_is_said_and_done(tmp_path: Path, short_dir: Path) -> None:
    async with open_console(tmp_path, short_dir) as console:
        assert await console.answer("pardon", "lease:1:1000") == "lease:1:1000 was convicted; it is no longer\n"
        done = await console.run("pardon", "lease:1:1000")
        assert (done.status, done.err) == (1, "mpsctl pardon: nothing is held against lease:1:1000 (NO_SUCH_FAULT)\n")
        done = await console.run("pardon", "user:1000:crasher", peer=OWNER)
        assert done.err == "mpsctl pardon: blame.pardon needs an operator; you are user 1000 (NOT_ALLOWED)\n"
        assert set(console.daemon.fakes.faults.held) == {"container:train.service:1000", "user:1000:crasher"}
        console.daemon.fakes.faults.held.clear()
        assert await console.answer("blame") == "no client is in quarantine, suspected or paused\n"

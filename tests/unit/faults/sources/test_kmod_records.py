"""Records of the fault channel: the header and Python agree; what is damaged or foreign is refused."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.errors import ProtocolError
from mpsd.faults.sources import kmod_records
from mpsd.faults.sources.kmod_records import (
    EXEMPT,
    GET_INFO,
    INFO,
    MAJOR,
    POLICY,
    RECORD,
    SET_POLICY,
    TARGET,
    Mode,
    RecordKind,
    observe,
    parse_info,
    parse_records,  # fmt: skip
)
from mpsd.model.fault import FaultClass, Source
from mpsd.model.process import ProcessId

HEADER = Path(__file__).resolve().parents[4] / "kmod/include/mpsd_fault.h"
# In the order of RECORD; the value is that of the byte at its offset, as set below.
FIELDS = (
    "size", "major", "kind", "flags", "sequence", "monotonic_ns", "gpu_ns", "address", "window_base", "window_bytes",
    "start_ns", "gpu_uuid", "tgid", "uid", "lost", "channel", "client_id", "ve_id", "gpc_id", "client_type", "engine_type",
    "access_type", "fault_type", "reason", "action", "why", "comm",
)  # fmt: skip
UUID = bytes(range(16))


def record(**values: object) -> bytes:
    """A FAULT record, with other values where they are given."""
    known = dict.fromkeys(FIELDS, 0) | {"size": 128, "major": MAJOR, "kind": 1, "gpu_uuid": UUID, "comm": b"train\0junk"}
    known |= {"tgid": 4711, "start_ns": 123_456_789_012, "monotonic_ns": 50, "address": 0x7F0000, "access_type": 2, "reason": 1}
    return RECORD.pack(*(known | values).values())


def test_every_why_of_the_header_has_words():
    """And the acceptance script, which stands alone, has words for the same."""
    header = {int(number) for number in re.findall(r"MPSD_FAULT_WHY_\w+ = (\d+)", HEADER.read_text())}
    accept = (HEADER.parents[1] / "accept").read_text()
    table = accept.partition("WHY = {")[2].partition("}")[0]
    assert header == {0, *kmod_records._WHYS} == {0, *map(int, re.findall(r"(\d+): ", table))}
    (fault,) = parse_records(record(why=7))
    assert "(all windows of the client are used)" in observe(fault, 100).text


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_the_header_is_one_of_c_plus_plus_too():
    """Readers in C++ include it as it is."""
    subprocess.run(
        ["g++", "-std=c++11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", "c++", "-"],
        input=f'#include "{HEADER}"\nstatic_assert(sizeof(mpsd_fault_record) == 128 && MPSD_FAULT_MAJOR == 1, "");\n',
        text=True,
        check=True,
        timeout=60,
    )


def test_the_layout_is_the_headers(tmp_path):
    """Compiled with the machine's compiler: every field is where Python looks for it."""
    lines = "".join(f'printf("%zu ", offsetof(struct mpsd_fault_record, {field}));' for field in FIELDS)
    program = f"""
#include "{HEADER}"
#include <stddef.h>
#include <stdio.h>
int main(void) {{
    {lines}
    printf("%zu %zu %lu %d ", sizeof(struct mpsd_fault_record), sizeof(struct mpsd_fault_info),
           (unsigned long)MPSD_FAULT_INFO, MPSD_FAULT_MAJOR);
    printf("%zu %zu %zu %zu ", sizeof(struct mpsd_fault_policy), offsetof(struct mpsd_fault_policy, window_bytes),
           sizeof(struct mpsd_fault_target), offsetof(struct mpsd_fault_target, address));
    printf("%lu %lu %d %d %d %d", (unsigned long)MPSD_FAULT_POLICY, (unsigned long)MPSD_FAULT_EXEMPT,
           MPSD_FAULT_OFF, MPSD_FAULT_REPORT, MPSD_FAULT_SINK, MPSD_FAULT_SINK_KILL);
    return 0;
}}
"""
    (tmp_path / "layout.c").write_text(program)
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / "layout", tmp_path / "layout.c"]
    subprocess.run(command, check=True)
    numbers = list(map(int, subprocess.check_output([tmp_path / "layout"]).split()))
    *offsets, record_bytes, info_bytes, get_info, major = numbers[:-10]
    assert numbers[-10:] == [POLICY.size, 8, TARGET.size, 8, SET_POLICY, EXEMPT, *Mode]
    assert (record_bytes, info_bytes, get_info, major) == (RECORD.size, INFO.size, GET_INFO, MAJOR)
    assert offsets == list(python_offsets())


def python_offsets():
    """Return the offsets of the fields of RECORD, from its format."""
    at = 0
    for count, letter in re.findall(r"(\d*)([a-zA-Z])", RECORD.format):
        if letter in "sx":
            if letter == "s":
                yield at
            at += int(count or 1)
            continue
        for _ in range(int(count or 1)):
            yield at
            at += struct.calcsize("=" + letter)


def test_kinds_are_the_headers():
    found = re.findall(r"MPSD_FAULT_KIND_(\w+) = (\d+)", HEADER.read_text())
    assert {name: int(number) for name, number in found} == {kind.name: kind.value for kind in RecordKind}


def test_a_fault_is_proof_and_tells_process_address_and_gpu():
    (found,) = parse_records(record(action=1))
    seen = observe(found, 100)
    assert (seen.source, seen.fault_class, seen.is_proof) == (Source.KMOD, FaultClass.MMU, True)
    assert seen.process == ProcessId(4711, 12345)
    assert (seen.address, seen.access, seen.seen_ns) == (0x7F0000, "write", 50)
    assert seen.gpu == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert seen.text == "write at 0x7f0000 by pid 4711 (train), fault type 0; contained"


@pytest.mark.parametrize(
    ("action", "kind", "is_contained"),
    [
        pytest.param(0, RecordKind.FAULT, False, id="cancelled"),
        pytest.param(1, RecordKind.FAULT, True, id="sunk"),
        pytest.param(2, RecordKind.FAULT, True, id="in a window of before"),
        pytest.param(3, RecordKind.FAULT, False, id="of a later version"),
        pytest.param(1, RecordKind.STOPPED, False, id="no fault"),
        pytest.param(1, RecordKind.GONE, False, id="nor this"),
    ],
)
def test_what_the_module_absorbed_is_said(action, kind, is_contained):
    (found,) = parse_records(record(action=action, kind=kind))
    assert observe(found, 100).is_contained is is_contained


def test_the_actions_that_absorb_are_the_headers():
    found = dict(re.findall(r"MPSD_FAULT_(CANCELLED|SUNK|ALREADY) = (\d+)", HEADER.read_text()))
    contained = {name for name, number in found.items() if observe(*parse_records(record(action=int(number))), 9).is_contained}
    assert (len(found), contained) == (3, {"SUNK", "ALREADY"})


@pytest.mark.parametrize("kind", [RecordKind.STOPPED, RecordKind.GONE])
def test_what_follows_a_fault_proves_nothing(kind):
    (found,) = parse_records(record(kind=kind))
    seen = observe(found, 100)
    assert (seen.is_proof, seen.address, seen.process) == (False, None, ProcessId(4711, 12345))


@pytest.mark.parametrize(
    ("values", "is_proof"),
    [
        *(pytest.param({"reason": each}, True, id=f"its own doing, reason {each}") for each in (1, 2, 3)),
        pytest.param({"reason": 1, "action": 1}, True, id="absorbed"),
        pytest.param({"reason": 1, "why": 15}, True, id="its own doing, and the window could not be written"),
        pytest.param({"reason": 1, "why": 10}, False, id="cancelled with a whole batch"),
        pytest.param({"reason": 4, "why": 1}, False, id="out of memory"),
        pytest.param({"reason": 5, "why": 1}, False, id="internal error"),
        pytest.param({"reason": 0, "why": 1}, False, id="no reason"),
        pytest.param({"reason": 9, "why": 1}, False, id="a reason of a later driver"),
        pytest.param({"reason": 3, "fault_type": 15}, False, id="damaged memory of the GPU"),
        pytest.param({"reason": 0, "flags": 2}, True, id="made up for a test"),
    ],
)
def test_only_what_a_client_did_itself_proves_anything(values, is_proof):
    """UVM cancels everybody's pending faults when it runs out of memory or fails: those records name innocents."""
    (found,) = parse_records(record(**values))
    assert observe(found, 100).is_proof is is_proof


def test_the_reason_that_proves_nothing_is_the_headers():
    (number,) = re.findall(r"MPSD_FAULT_WHY_GLOBAL = (\d+)", HEADER.read_text())
    assert int(number) == kmod_records._WHOLE_BATCH


def test_damaged_memory_is_a_fault_of_the_device():
    (found,) = parse_records(record(fault_type=15, reason=3))
    assert observe(found, 100).fault_class is FaultClass.DEVICE


def test_a_fault_of_nobody_known_is_no_proof():
    (found,) = parse_records(record(tgid=0))
    assert (observe(found, 100).process, observe(found, 100).is_proof) == (None, False)


@pytest.mark.parametrize("stamp", [0, 101])
def test_a_time_that_cannot_be_is_not_believed(stamp):
    (found,) = parse_records(record(monotonic_ns=stamp))
    assert observe(found, 100).seen_ns == 100


def test_kinds_of_later_versions_and_longer_records_are_passed_over():
    longer = struct.pack("=H", 136) + record(kind=9)[2:] + bytes(8)
    longer_fault = struct.pack("=H", 136) + record(tgid=5)[2:] + b"\xff" * 8
    found = list(parse_records(longer + longer_fault + record(tgid=6)))
    assert [each.process.pid for each in found if each.kind is not None] == [5, 6]
    assert found[0].kind is None


def test_what_was_lost_before_a_record_of_a_later_version_is_counted():
    assert [each.lost for each in parse_records(record(kind=9, lost=3, flags=8) + record())] == [3, 0]


def test_no_command_has_the_number_of_another_device():
    """The letter is shared with mtio.h, soundcard.h and others; the numbers are not, and never change: INFO comes first."""
    ours = set(re.findall(r"_IO[RW]+\('m', (0x\w+)", HEADER.read_text()))
    found = subprocess.run(
        ["grep", "-rhoE", r"_S?IO[WR]*\( *'m' *, *(0x)?[0-9a-fA-F]+", "/usr/include/linux"], capture_output=True, text=True
    ).stdout
    others = {int(each.rpartition(",")[2], 0) for each in found.splitlines()}
    assert len(ours) == 4
    assert others, "the kernel's headers have other devices under this letter"
    assert not others & {int(each, 0) for each in ours}


def test_lost_records_count_only_where_the_flag_says_so():
    assert [each.lost for each in parse_records(record(lost=3) + record(lost=3, flags=8))] == [0, 3]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(record(major=2), "version 2", id="another version"),
        pytest.param(record(size=120), "120 bytes", id="too short"),
        pytest.param(record(size=132), "132 bytes", id="not a multiple of 8"),
        pytest.param(record(size=136), "136 bytes", id="longer than what was read"),
        pytest.param(record()[:100], "128 bytes", id="half a record"),
        pytest.param(record() + b"\0\0", "2 bytes after", id="a rest"),
    ],
)
def test_what_are_no_records_is_refused(data, why):
    with pytest.raises(ProtocolError, match=why):
        list(parse_records(data))


@given(st.binary(max_size=300))
def test_any_bytes_are_records_or_refused(data):
    try:
        found = list(parse_records(struct.pack("=HBB", 128, MAJOR, 1) + data))
    except ProtocolError:
        return
    assert all(observe(each, 10).text.isprintable() for each in found)


def info(major=MAJOR, record_bytes=128) -> bytes:
    return INFO.pack(major, record_bytes, 1024, 0, 7, b"580.159.04")


def test_the_module_says_its_version():
    found = parse_info(info(record_bytes=160))
    assert (found.record_bytes, found.ring_records, found.driver) == (160, 1024, "580.159.04")


@pytest.mark.parametrize(
    ("answer", "why"), [(info(major=2), "version 2 of the fault channel, mpsd 1"), (info(record_bytes=64), "64 bytes")]
)
def test_a_module_of_another_version_is_refused(answer, why):
    with pytest.raises(ProtocolError, match=why):
        parse_info(answer)

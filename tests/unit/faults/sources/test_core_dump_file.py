"""Core dumps: those of an H200, those made by hand, and damaged ones."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.errors import ProtocolError
from mpsd.faults.sources.core_dump_file import MOST_EXCEPTIONS, CoreFile, parse_core
from mpsd.faults.sources.sm_exceptions import TRAP
from tests.unit.faults.sources import core_builder as made

CORES = Path(__file__).parent / "cores"  # driver 580.159, H200; the code of NVIDIA's own modules was overwritten with zeros
SAMPLES = {path.stem: gzip.decompress(path.read_bytes()) for path in sorted(CORES.glob("*.gz"))}
CLASSES = ("trap", "misaligned", "assert_fail", "illegal_instruction")


def parse(data: bytes) -> CoreFile:
    return parse_core(lambda offset, size: data[offset : offset + size], len(data))


@pytest.mark.parametrize(
    ("sample", "name", "pc", "pc_offset"),
    [
        ("trap", "TRAP", 0x7FD0437A2A20, 0x20),
        ("misaligned", "WARP_MISALIGNED_ADDRESS", 0x7F2C237A2A90, 0x90),
        ("assert_fail", "WARP_ASSERT", 0x7F2EA37A2AF0, 0xF0),
        ("illegal_instruction", "WARP_ILLEGAL_INSTRUCTION", 0x7F40837A2A10, 0x10),
    ],
)
def test_the_dump_of_a_culprit_tells_what_it_did_and_where(sample, name, pc, pc_offset):
    core = parse(SAMPLES[f"{sample}-culprit"])
    assert core.has_exception
    assert not core.clears
    assert core.kernel == sample
    (found,) = core.exceptions
    assert (found.name, found.pc, found.pc_offset) == (name, pc, pc_offset)
    assert (found.sm, found.warp, found.lane, found.block, found.thread) == (0, 1, 0, (0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("sample", CLASSES)
def test_the_dump_of_an_innocent_clears_it(sample):
    core = parse(SAMPLES[f"{sample}-innocent"])
    assert not core.has_exception
    assert core.clears


@pytest.mark.parametrize(("sample", "kind"), [("misaligned", 6), ("illegal_instruction", 4)])
def test_an_innocents_dump_holds_the_sm_of_the_culprit_and_is_no_proof(sample, kind):
    """The SM table is of the whole GPU: taken for proof, it would convict everybody."""
    assert parse(SAMPLES[f"{sample}-innocent"]).sm_kinds == (kind,)


def test_an_exception_of_an_sm_alone_convicts_nobody_and_clears_nobody_who_has_work_there():
    core = parse(made.core(made.work(lanes=[made.lane()], sm_exception=6)))
    assert not core.has_exception
    assert not core.clears
    assert core.sm_kinds == (6,)


def test_the_lane_with_the_exception_is_told_not_the_first():
    core = parse(made.core(made.work(lanes=[made.lane(0), made.lane(7, exception=6)], is_broken=True)))
    (found,) = core.exceptions
    assert (found.sm, found.lane, found.kind, found.block) == (5, 7, 6, (3, 0, 0))


def test_a_warp_that_stopped_is_told_even_without_its_lanes():
    (found,) = parse(made.core(made.work(lanes=[], is_broken=True))).exceptions
    assert (found.kind, found.lane, found.pc) == (TRAP, None, None)


def test_of_many_exceptions_the_first_are_kept_and_those_with_a_number_come_first():
    tables = made.work(lanes=[made.lane(number, exception=12) for number in range(32)])
    tables[3] = (made.WARPS, 3, 0, [made.warp(number, is_broken=True) for number in range(32)])
    core = parse(made.core(tables))
    assert [each.kind for each in core.exceptions] == [12] * MOST_EXCEPTIONS


def test_more_sections_than_the_header_can_count_are_all_seen():
    """A GPU full of warps has hundreds of thousands."""
    tables = made.work(lanes=[made.lane(3, exception=6)])
    assert parse(made.core(tables, fillers=0x10000)).exceptions[0].lane == 3


def test_rows_of_older_drivers_are_shorter():
    old_sm = made.sm(5)[:8]  # before 555
    tables = made.work(lanes=[made.lane(3, exception=6)[:48]])
    tables[1] = (made.SMS, 0, 0, [old_sm])
    tables[3] = (made.WARPS, 3, 0, [made.warp()[:32]])
    core = parse(made.core(tables))
    assert (core.exceptions[0].sm, core.sm_kinds) == (5, ())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x7fELF" + bytes(100), id="no identity"),
        pytest.param(SAMPLES["trap-culprit"][:-1], id="one byte short"),
        pytest.param(SAMPLES["trap-culprit"].replace(b"\x33", b"\x03", 1), id="another ABI"),
        pytest.param(made.core([(made.LANES, 1, 0, [made.lane(exception=6)])]), id="a table that is its own parent"),
        pytest.param(made.core([(made.LANES, 9, 0, [made.lane(exception=6)])]), id="a parent that is not there"),
        pytest.param(made.core([(made.WARPS, 0, 0, [made.warp()[:31]])]), id="rows that are too short"),
    ],
)
def test_what_is_no_core_dump_is_refused(data):
    with pytest.raises(ProtocolError):
        parse(data)


def test_a_parents_row_that_is_not_there_is_refused():
    tables = made.work(lanes=[made.lane(exception=6)])
    tables[3] = (made.WARPS, 3, 1, tables[3][3])
    with pytest.raises(ProtocolError, match="no row 1"):
        parse(made.core(tables))


def test_a_file_that_is_cut_while_it_is_read_is_refused():
    data = SAMPLES["trap-culprit"]
    with pytest.raises(ProtocolError, match="cut short"):
        parse_core(lambda offset, size: data[offset : offset + size][:16], len(data))


def sparse(size: int, row_bytes: int) -> bytes:
    """Return the beginning of a sparse file that its table fills: an attacker pays one header for it."""
    head = bytearray(made.core([(made.SMS, 0, 0, [made.sm()])]))
    at = struct.unpack_from("<Q", head, 40)[0] + 64
    struct.pack_into("<Q", head, at + 32, (size - 4096) // row_bytes * row_bytes)
    struct.pack_into("<Q", head, at + 56, row_bytes)
    return bytes(head)


def test_reading_ends_and_takes_little_memory_whatever_a_file_claims():
    size = 16 << 30
    head = sparse(size, row_bytes=4096)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="would have to be read"):
            parse_core(lambda offset, wanted: head[offset : offset + wanted].ljust(wanted, b"\0"), size)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_the_number_of_rows_is_bounded_too():
    """A file of short rows took seven seconds, and the event loop waited for the interpreter again and again."""
    size = 100 << 20
    head = sparse(size, row_bytes=24)
    with pytest.raises(ProtocolError, match="would have to be read"):
        parse_core(lambda offset, wanted: head[offset : offset + wanted].ljust(wanted, b"\0"), size)


def test_the_name_of_a_kernel_cannot_write_to_a_terminal():
    data = SAMPLES["trap-culprit"].replace(b"\0trap\0", b"\0\x1b[2J\0")
    assert parse(data).kernel == "?[2J"


def test_a_damaged_module_costs_the_name_alone():
    data = bytearray(SAMPLES["trap-culprit"])
    image = bytes(data).rfind(b"\x7fELF")
    data[image + 40 : image + 48] = b"\xff" * 8  # where its sections are
    core = parse(bytes(data))
    assert (core.has_exception, core.kernel) == (True, "")


@given(
    sample=st.sampled_from(sorted(SAMPLES)),
    damage=st.lists(st.tuples(st.integers(0, 320_000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6),
    cut=st.one_of(st.none(), st.integers(0, 320_000)),
)
def test_damage_is_refused_or_read_and_never_anything_else(sample, damage, cut):
    """Half of the damage is in the section headers, where it has the most effect."""
    data = bytearray(SAMPLES[sample])
    headers = struct.unpack_from("<Q", data, 40)[0]
    for number, (at, change) in enumerate(damage):
        at = headers + at % (len(data) - headers) if number % 2 else at % len(data)
        data[at : at + len(change)] = change
    try:
        core = parse(bytes(data[:cut]))
    except ProtocolError:
        return
    assert len(core.exceptions) <= MOST_EXCEPTIONS
    assert core.kernel.isprintable()

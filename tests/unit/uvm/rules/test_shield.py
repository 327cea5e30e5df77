"""Which addresses are made harmless: nothing that is, or could come to be, mapped."""

import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.uvm.holding import read_mappings
from mpsd.uvm.rules.memory_maps import Mapping, parse_maps
from mpsd.uvm.rules.shield import ShieldPlan, plan_shield
from tests.inspecting import INSPECTOR

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PIE = 0x5555_5555_4000
NORMAL = (
    "555555554000-555555556000 r--p 00000000 fe:01 131 /usr/bin/cat\n"
    "7ffff7fc1000-7ffff7fc3000 rw-p 00000000 00:00 0 \n"
    "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"
)


def spans(plan: ShieldPlan) -> list[tuple[int, int]]:
    return [(span.base, span.end) for span in plan.spans]


@pytest.mark.parametrize(
    ("lowest", "setting", "expected"),
    [
        pytest.param(PIE, "off", [], id="off"),
        pytest.param(PIE, "low", [(64 * KIB, 2 * MIB), (2 * MIB, 4 * MIB)], id="low"),
        pytest.param(0x400000, "low", [(64 * KIB, 2 * MIB), (2 * MIB, 4 * MIB)], id="linked to where ld puts it"),
        pytest.param(0x200000, "low", [(64 * KIB, 2 * MIB)], id="linked to where lld puts it"),
        pytest.param(0x210FFF, "low", [(64 * KIB, 2 * MIB), (2 * MIB, 0x210000)], id="cut at a page of 64 KiB"),
        pytest.param(0x20000, "low", [(64 * KIB, 128 * KIB)], id="what is left"),
        pytest.param(0x1FFFF, "low", [], id="nothing is left"),
        pytest.param(0, "low", [], id="something at 0"),
        pytest.param(0x400000, "wide", [(64 * KIB, 2 * MIB), (2 * MIB, 4 * MIB)], id="no wide one beside an image"),
        pytest.param(4 * GIB - 1, "wide", [(64 * KIB, 2 * MIB), (2 * MIB, 4 * MIB)], id="nor beside anything low"),
    ],
)
def test_plan(lowest: int, setting, expected: list[tuple[int, int]]) -> None:
    plan = plan_shield([Mapping(lowest, lowest + 4096), Mapping(PIE * 2, PIE * 2 + 4096)], setting)
    assert spans(plan) == expected
    assert bool(plan.why) == (setting != "low" or expected[-1:] != [(2 * MIB, 4 * MIB)])


def test_a_wide_one_is_in_pieces_and_ends_where_map_32bit_begins() -> None:
    plan = plan_shield(parse_maps(NORMAL), "wide")
    assert (spans(plan)[0], spans(plan)[-1], plan.why) == ((64 * KIB, 2 * MIB), (512 * MIB, GIB), "")
    assert len(plan.spans) == 10


def test_of_a_process_that_cannot_be_looked_at_nothing_is_known_to_be_free() -> None:
    assert plan_shield([], "wide") == ShieldPlan((), "its mappings are not known")


@given(st.lists(st.tuples(st.integers(0, 2**47), st.integers(1, 2**33)), min_size=1), st.sampled_from(["low", "wide"]))
def test_no_span_touches_a_mapping(found: list[tuple[int, int]], setting) -> None:
    mappings = [Mapping(start, start + length) for start, length in found]
    planned = spans(plan_shield(mappings, setting))
    assert all(end <= mapping.start or mapping.end <= base for base, end in planned for mapping in mappings)
    assert all(base % (64 * KIB) == 0 and end % (64 * KIB) == 0 and 64 * KIB <= base < end <= GIB for base, end in planned)
    assert all(first[1] == second[0] for first, second in pairwise(planned))


def test_maps_as_the_kernel_writes_them() -> None:
    assert [mapping.start for mapping in parse_maps(NORMAL)] == [0x555555554000, 0x7FFFF7FC1000, 0xFFFFFFFFFF600000]
    assert parse_maps("") == []
    assert len(parse_maps(NORMAL + "7fff")) == 3  # what was cut off


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        "555555554000 r--p 00000000 fe:01 131\n",
        "zz-yy r--p 00000000 fe:01 131\n",
        "555555554000-555555554000 r--p 00000000 fe:01 131\n",
        "555555555000-555555554000 r--p 00000000 fe:01 131\n",
        "11111111111111111-22222222222222222 r--p 00000000 fe:01 131\n",
        "7000-8000 r--p 0 0:0 0\n1000-2000 r--p 0 0:0 0\n",
        "1000-3000 r--p 0 0:0 0\n2000-4000 r--p 0 0:0 0\n",
    ],
)
def test_what_the_kernel_would_not_write_is_refused(text: str) -> None:
    """A wrong reading would show addresses as free."""
    with pytest.raises(ValueError, match="not a "):
        parse_maps(text)


@given(st.text(alphabet="0123456789abcdef- rwxp:\n", max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = parse_maps(text)
    except ValueError:
        return
    assert all(mapping.start < mapping.end for mapping in found)


def test_the_mappings_of_a_real_process() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert read_mappings(child.pid, INSPECTOR)[0].start >= 0x200000
    finally:
        child.communicate(b"\n")
    assert read_mappings(child.pid, INSPECTOR) == []

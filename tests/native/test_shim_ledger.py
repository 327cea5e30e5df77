"""The shim's ledger against a model that knows one thing: what each granule holds."""

import ctypes
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
GRANULES = 24  # of the window: small, so that everything meets everything
BASE = 1000
MEMORY, GUARD, STUCK = 1, 2, 3
EEXIST, EINVAL, ENOENT = 17, 22, 2


class Ledger(ctypes.Structure):
    _fields_ = [("ranges", ctypes.c_void_p), ("count", ctypes.c_size_t), ("room", ctypes.c_size_t)]


class Range(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("kind", ctypes.c_int), ("note", ctypes.c_uint64),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    out = tmp_path_factory.mktemp("ledger") / "ledger.so"
    source = ROOT / "clients/shim/ledger.c"
    subprocess.run(["gcc", "-std=c11", "-O1", "-fPIC", "-shared", "-o", out, source], check=True)
    made = ctypes.CDLL(str(out))
    u64, pointer = ctypes.c_uint64, ctypes.POINTER(Ledger)
    made.ledger_add.argtypes = [pointer, u64, u64, ctypes.c_int, u64]
    made.ledger_remove.argtypes = [pointer, u64]
    made.ledger_clear.argtypes = [pointer]
    made.ledger_find.argtypes = made.ledger_next.argtypes = [pointer, u64]
    made.ledger_find.restype = made.ledger_next.restype = ctypes.POINTER(Range)
    made.ledger_hole.argtypes = [pointer, u64, u64, ctypes.POINTER(u64), ctypes.POINTER(u64)]
    made.ledger_hole.restype = ctypes.c_bool
    made.ledger_place.argtypes = [pointer, u64, u64, u64, u64]
    made.ledger_place.restype = u64
    return made


class Model:
    """ranges: base to (bytes, kind)."""

    def __init__(self) -> None:
        self.ranges: dict[int, tuple[int, int]] = {}

    def at(self, address: int) -> tuple[int, int, int] | None:
        return next(((b, n, k) for b, (n, k) in self.ranges.items() if b <= address < b + n), None)

    def add(self, base: int, length: int, kind: int) -> int:
        if any(self.at(address) for address in range(base, base + length)):
            return -EEXIST
        self.ranges[base] = (length, kind)
        return 0

    def hole(self, first: int, last: int) -> tuple[int, int] | None:
        free = [address for address in range(first, last) if self.at(address) is None]
        if not free:
            return None
        length = next((i for i in range(last - free[0]) if self.at(free[0] + i) is not None), last - free[0])
        return free[0], length

    def place(self, first: int, last: int, length: int, gap: int) -> int:
        def is_open(address: int) -> bool:
            found = self.at(address)
            return first <= address < last and (found is None or found[2] == GUARD)

        return next((at for at in range(first + gap, last) if all(map(is_open, range(at - gap, at + length + gap)))), 0)


PLACES = st.integers(BASE, BASE + GRANULES - 1)
LENGTHS = st.integers(1, 8)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), PLACES, LENGTHS, st.sampled_from([MEMORY, GUARD, STUCK])),
        st.tuples(st.just("remove"), PLACES),
        st.tuples(st.just("hole"), PLACES, LENGTHS),
        st.tuples(st.just("place"), LENGTHS, st.integers(0, 3)),
    ),
    max_size=40,
)


def look(library, ledger, model) -> None:
    """Everything it knows."""
    for address in range(BASE - 1, BASE + GRANULES + 9):
        found = library.ledger_find(ledger, address)
        assert (model.at(address) is None) == (not found), address
        if found:
            assert (found[0].base, found[0].bytes, found[0].kind) == model.at(address)
        later = min((base for base, (length, _) in model.ranges.items() if base + length > address), default=None)
        following = library.ledger_next(ledger, address)
        assert (following[0].base if following else None) == later


@given(deeds=DEEDS)
def test_it_knows_what_is_where(library, deeds) -> None:
    ledger, model = Ledger(), Model()
    base, length = ctypes.c_uint64(), ctypes.c_uint64()
    for deed, *what in deeds:
        if deed == "add":
            assert library.ledger_add(ledger, *what, 0) == model.add(*what)
        elif deed == "remove":
            assert library.ledger_remove(ledger, *what) == (0 if model.ranges.pop(what[0], None) else -ENOENT)
        elif deed == "hole":
            first, last = what[0], what[0] + what[1]
            is_there = library.ledger_hole(ledger, first, last, base, length)
            assert model.hole(first, last) == ((base.value, length.value) if is_there else None)
        else:
            ends = BASE, BASE + GRANULES
            assert library.ledger_place(ledger, *ends, *what) == model.place(*ends, *what)
    look(library, ledger, model)
    library.ledger_clear(ledger)


@pytest.mark.parametrize(("base", "length"), [(5, 0), (2**64 - 1, 2), (1, 2**64 - 1)])
def test_what_is_no_range_is_refused(library, base, length) -> None:
    assert library.ledger_add(Ledger(), base, length, MEMORY, 0) == -EINVAL


def test_a_place_that_no_gap_fits_around_is_none(library) -> None:
    assert library.ledger_place(Ledger(), BASE, BASE + 10, 4, 2**63) == 0
    assert library.ledger_place(Ledger(), BASE, BASE + 10, 0, 0) == 0

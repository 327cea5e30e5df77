"""What the shim commits with its arena: read back as it was written, and refused when it is anything else."""

import ctypes
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAD = b'{"format": "mpsd-shim-1", "allocations": ['
EBADMSG, ENOENT = 74, 2


class Layout(ctypes.Structure):
    _fields_ = [("entries", ctypes.c_void_p), ("count", ctypes.c_size_t), ("room", ctypes.c_size_t)]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    out = tmp_path_factory.mktemp("layout") / "layout.so"
    source = ROOT / "clients/shim/layout.c"
    subprocess.run(["gcc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-o", out, source], check=True)
    made = ctypes.CDLL(str(out))
    u64, pointer = ctypes.c_uint64, ctypes.POINTER(Layout)
    made.layout_add.argtypes = [pointer, u64, u64, ctypes.c_bool]
    made.layout_remove.argtypes = [pointer, u64]
    made.layout_claim.argtypes = [pointer, u64, ctypes.POINTER(u64)]
    made.layout_waiting.argtypes = [pointer, ctypes.POINTER(u64)]
    made.layout_write.argtypes = [pointer, ctypes.POINTER(ctypes.c_size_t)]
    made.layout_write.restype = ctypes.c_void_p
    made.layout_read.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
    return made


def write(library, layout) -> bytes:
    count = ctypes.c_size_t()
    return ctypes.string_at(library.layout_write(layout, count), count.value)


def read(library, text: bytes) -> tuple[int, Layout]:
    layout = Layout()
    return library.layout_read(layout, text, len(text)), layout


def claim(library, layout, size: int) -> int:
    offset = ctypes.c_uint64()
    return offset.value if library.layout_claim(layout, size, offset) == 0 else -1


def test_the_same_sizes_get_their_old_places_in_order(library) -> None:
    before = Layout()
    for offset, size in ((0, 7), (10, 5), (20, 7), (30, 2**63)):
        assert library.layout_add(before, offset, size, False) == 0
    status, after = read(library, write(library, before))
    assert status == 0
    assert [claim(library, after, size) for size in (7, 6, 7, 7, 5, 2**63)] == [0, -1, 20, -1, 10, 30]
    assert write(library, after) == HEAD + b"[0, 7], [20, 7], [10, 5], [30, 9223372036854775808]]}"


def test_what_nobody_claims_is_known(library) -> None:
    status, layout = read(library, HEAD + b"[0, 1], [2, 3]]}")
    offset = ctypes.c_uint64()
    assert (status, claim(library, layout, 1)) == (0, 0)
    assert (library.layout_waiting(layout, offset), offset.value) == (0, 2)
    assert library.layout_remove(layout, 2) == 0
    assert library.layout_waiting(layout, offset) == -ENOENT == library.layout_remove(layout, 2)


def test_nothing_is_a_layout_too(library) -> None:
    status, layout = read(library, write(library, Layout()))
    assert (status, layout.count) == (0, 0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        HEAD,
        HEAD + b"]",
        HEAD + b"]} ",
        HEAD + b"[1, 2],]}",
        HEAD + b"[1, 2], ]}",
        HEAD + b"[1]]}",
        HEAD + b"[1, 2, 3]]}",
        HEAD + b"[-1, 2]]}",
        HEAD + b"[ 1, 2]]}",
        HEAD + b"[1, 99999999999999999999]]}",
        HEAD + b"[1, 2]]}\0",
        HEAD.replace(b"shim-1", b"shim-2") + b"]}",
        HEAD.replace(b"shim", b"tensors") + b"]}",
    ],
)
def test_what_is_not_the_shims_is_refused(library, text) -> None:
    status, layout = read(library, text)
    assert (status, layout.count, layout.entries) == (-EBADMSG, 0, None)

"""DLPack capsules of arenas, read as a consumer in C would: by the structs of dmlc/dlpack, written down here a second time.

The addresses in them are never followed, so no GPU is needed.
"""

import ctypes
import gc
import threading
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any

import pytest
from mpsd_client._dlpack import Exports
from mpsd_client._layout import DATA_TYPES, MOST_DIMENSIONS

ADDRESS = 0x2000_0020_0000
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
FLOAT32 = DATA_TYPES["float32"]

get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = c_void_p, (py_object, c_char_p)
is_valid = ctypes.pythonapi.PyCapsule_IsValid
is_valid.restype, is_valid.argtypes = c_int, (py_object, c_char_p)
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.restype, set_name.argtypes = c_int, (py_object, c_char_p)
USED = {PLAIN: c_char_p(b"used_dltensor"), VERSIONED: c_char_p(b"used_dltensor_versioned")}  # kept: a capsule has the pointer


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class Plain(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", DELETER),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    )


KINDS: dict[bytes, Any] = {PLAIN: Plain, VERSIONED: Versioned}
names = pytest.mark.parametrize("name", [PLAIN, VERSIONED], ids=["plain", "versioned"])


def make(exports: Exports, name: bytes, shape: tuple[int, ...] = (2, 3), **also: Any) -> Any:
    return exports.capsule(ADDRESS, 1, FLOAT32, shape, tuple(range(7, 7 + len(shape))), is_versioned=name == VERSIONED, **also)


def take(capsule: Any, name: bytes) -> Any:
    """As a consumer does: it has the struct now, and the capsule is used up."""
    held = KINDS[name].from_address(get_pointer(capsule, name))
    assert set_name(capsule, USED[name]) == 0
    return held


def let_go(held: Any) -> None:
    held.deleter(ctypes.addressof(held))


@names
def test_a_capsule_says_where_the_elements_are(name: bytes) -> None:
    exports = Exports()
    held = take(make(exports, name), name)
    tensor = held.tensor
    assert (tensor.data, tensor.byte_offset, tensor.device_type, tensor.device_id) == (ADDRESS, 0, 2, 1)
    assert (tensor.ndim, tensor.shape[:2], tensor.strides[:2]) == (2, [2, 3], [7, 8])
    assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
    let_go(held)


@pytest.mark.parametrize("kind", DATA_TYPES.values(), ids=lambda kind: str(kind.name))
def test_every_data_type_has_its_code(kind: Any) -> None:
    """bits times lanes are its size: a consumer has no other information."""
    exports = Exports()
    held = take(exports.capsule(ADDRESS, 0, kind, (1,), (1,), is_versioned=True), VERSIONED)
    tensor = held.tensor
    assert (tensor.code, tensor.bits * tensor.lanes) == (kind.code, kind.bytes * 8)
    let_go(held)


@pytest.mark.parametrize(("is_read_only", "flags"), [(False, 0), (True, 1)])
def test_a_versioned_capsule_says_its_version_and_whether_it_may_be_written(is_read_only: bool, flags: int) -> None:
    exports = Exports()
    held = take(make(exports, VERSIONED, is_read_only=is_read_only), VERSIONED)
    assert (held.major, held.minor, held.flags) == (1, 0, flags)
    let_go(held)


@names
@pytest.mark.parametrize("shape", [(), (0, 5), (1,) * MOST_DIMENSIONS], ids=["scalar", "empty", "most"])
def test_shapes_at_the_border_are_carried(name: bytes, shape: tuple[int, ...]) -> None:
    exports = Exports()
    held = take(make(exports, name, shape), name)
    assert (held.tensor.ndim, tuple(held.tensor.shape[: len(shape)])) == (len(shape), shape)
    let_go(held)


@names
def test_too_many_dimensions_are_refused(name: bytes) -> None:
    exports = Exports()
    with pytest.raises(MemoryError):
        make(exports, name, (1,) * (MOST_DIMENSIONS + 1))
    assert exports.out == 0


@names
def test_a_capsule_that_nobody_takes_goes_with_its_object(name: bytes) -> None:
    exports = Exports()
    capsule = make(exports, name)
    assert (is_valid(capsule, name), exports.out) == (1, 1)
    del capsule
    gc.collect()
    assert exports.out == 0


@names
def test_a_taken_capsule_counts_until_its_taker_lets_go(name: bytes) -> None:
    """The capsule's own end changes nothing any more."""
    exports = Exports()
    capsule = make(exports, name)
    held = take(capsule, name)
    del capsule
    gc.collect()
    assert exports.out == 1
    let_go(held)
    assert exports.out == 0


@names
def test_letting_go_needs_no_interpreter(name: bytes) -> None:
    """Consumers do it in threads that Python has never seen: here each is let go by a thread, all at once, without its lock."""
    exports = Exports()
    held = [take(make(exports, name), name) for _ in range(64)]
    assert exports.out == 64
    threads = [threading.Thread(target=let_go, args=(each,)) for each in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert exports.out == 0


@names
def test_a_capsule_outlives_the_count_it_belongs_to(name: bytes) -> None:
    exports = Exports()
    held = take(make(exports, name), name)
    del exports
    gc.collect()
    assert held.tensor.data == ADDRESS
    let_go(held)  # frees the count too: a sanitizer would see it otherwise
